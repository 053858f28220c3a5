//! Client protocols of Weir: NBD over a device.
