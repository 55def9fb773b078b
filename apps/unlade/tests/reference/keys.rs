//! The keys that a configuration accepts, from the structures that read it.
//!
//! `serde` gives a deserializer the names of the fields of each structure. The deserializer here
//! follows one path into the structures, notes what is at its end, and fails.

use std::cell::RefCell;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

/// One step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The field of a structure.
    Key(&'static str),
    /// A value of a table whose keys are free.
    Named,
    /// An element of an array.
    Item,
}

/// A path as text: `pool.NAME.servers`, `listener[].tls`.
pub fn render(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        let (separator, name) = match step {
            Step::Key(name) => (".", *name),
            Step::Named => (".", "NAME"),
            Step::Item => ("", "[]"),
        };
        text.push_str(if text.is_empty() { "" } else { separator });
        text.push_str(name);
    }
    text
}

/// The paths of all keys that `T` accepts.
pub fn of<T: for<'de> Deserialize<'de>>() -> Vec<Vec<Step>> {
    let mut keys = Vec::new();
    let mut open: Vec<Vec<Step>> = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let steps = RefCell::new(Vec::new());
        let _ = T::deserialize(Tracer { path: &path, steps: &steps });
        for step in steps.into_inner() {
            let longer = [&path[..], std::slice::from_ref(&step)].concat();
            if matches!(step, Step::Key(_)) {
                keys.push(longer.clone());
            }
            open.push(longer);
        }
    }
    keys
}

struct Tracer<'a> {
    /// The rest of the path.
    path: &'a [Step],
    /// The steps that are possible at its end.
    steps: &'a RefCell<Vec<Step>>,
}

impl Tracer<'_> {
    fn end<T>(&self, steps: impl IntoIterator<Item = Step>) -> Result<T, Error> {
        self.steps.borrow_mut().extend(steps);
        Err(Error::custom("the end of the path"))
    }
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        self.end([])
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.path {
            [] => self.end(fields.iter().map(|field| Step::Key(field))),
            [Step::Key(key), path @ ..] => {
                visitor.visit_map(One { key: Some(*key), path, ..self.one() })
            }
            _ => self.end([]),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.path {
            [] => self.end([Step::Named]),
            [_, path @ ..] => visitor.visit_map(One { key: Some("NAME"), path, ..self.one() }),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.path {
            [] => self.end([Step::Item]),
            [_, path @ ..] => visitor.visit_seq(One { path, ..self.one() }),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

impl<'a> Tracer<'a> {
    fn one(&self) -> One<'a> {
        One { key: None, path: &[], steps: self.steps }
    }
}

/// A table, or an array, with one value.
struct One<'a> {
    key: Option<&'static str>,
    path: &'a [Step],
    steps: &'a RefCell<Vec<Step>>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(key) = self.key.take() else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Tracer { path: self.path, steps: self.steps })
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        seed.deserialize(Tracer { path: self.path, steps: self.steps }).map(Some)
    }
}
