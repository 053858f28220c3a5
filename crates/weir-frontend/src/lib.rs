//! Client protocols of Weir, each turned into calls on a [`weir_device::Device`].
//!
//! A front end knows its protocol and the device contract, and nothing of what lies below it.

pub mod nbd;
