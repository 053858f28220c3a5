//! Bodies of requests whose fields are named.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// An object of JSON. A structure alone would be read from a list as well, its fields in their order and the missing
/// ones by default: `[]` would be a request for what nobody named.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Limits;
    use crate::verbs::limit::LimitVolume;

    #[test]
    fn a_list_names_no_field() {
        let limit = |json: &str| serde_json::from_str::<Named<LimitVolume>>(json);
        assert_eq!(limit("{}").expect("nothing changes").0, LimitVolume::default());
        assert!(limit(r#"{"iops": 5}"#).expect("it is named").0.iops.is_some());
        for list in ["[]", "[null]", "[5]", "null", "5", r#"{"iop": 5}"#] {
            assert!(limit(list).is_err(), "{list}");
        }
        let error = limit("[]").expect_err("a list").to_string();
        assert!(error.contains("invalid type: sequence, expected an object"), "{error}");
        assert!(serde_json::from_str::<Named<Limits>>("[]").is_err());
    }
}
