//! What people and programs read, and what a person is asked.

pub(crate) mod confirm;
pub(crate) mod failure;
pub(crate) mod form;
pub(crate) mod output;
