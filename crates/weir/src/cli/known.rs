//! Values of which some are words: what is offered where the shell completes a command.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};

/// A parser of a value, and the words that it knows beside others.
#[derive(Clone)]
pub(crate) struct Known<T> {
    parse: fn(&str) -> Result<T, String>,
    words: Vec<&'static str>,
}

impl<T> Known<T> {
    pub(crate) fn new(
        words: impl IntoIterator<Item = &'static str>,
        parse: fn(&str) -> Result<T, String>,
    ) -> Self {
        Self { parse, words: words.into_iter().collect() }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Known<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let parse = self.parse;
        (move |text: &str| parse(text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().map(PossibleValue::new)))
    }
}
