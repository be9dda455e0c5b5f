//! The words a recipe may use: each enum has one spelling per case, in `as_str`; parsing, printing, serde and the
//! JSON Schema derive from it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::chain::KvCache;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$case_doc])* $case,)+ }

        impl $name {
            /// Every case.
            pub const ALL: &'static [Self] = &[$(Self::$case,)+];

            /// The spelling in recipes.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$case => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|case| case.as_str() == word).ok_or_else(|| UnknownWord {
                    word: word.to_owned(),
                    allowed: Self::ALL.iter().map(|case| case.as_str()).collect(),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "enum": [$($word),+] })
            }
        }
    )+};
}

impl JsonSchema for KvCache {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KvCache".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<&str> = Self::ALL.iter().map(|kv| kv.as_str()).collect();
        json_schema!({ "type": "string", "enum": words })
    }
}

/// A word that is none of an enum's cases.
#[derive(Debug, thiserror::Error)]
#[error("`{word}` is not one of {}", quoted(allowed))]
pub struct UnknownWord {
    /// What was read.
    pub word: String,
    /// What would have been right.
    pub allowed: Vec<&'static str>,
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

words! {
    /// Minimum deployment target of the packages.
    Target {
        /// macOS 15 and iOS 18: the first with state and blockwise scales.
        MacOs15 = "macOS15",
    }

    /// Dtype in which the graph computes.
    ComputePrecision {
        /// Half precision: what the ANE runs.
        Float16 = "float16",
        /// Single precision: CPU and GPU only.
        Float32 = "float32",
    }

    /// How RMSNorm is written so that squares do not overflow float16.
    Norm {
        /// The input is divided by its largest magnitude before it is squared.
        MaxScaled = "max_scaled",
        /// `layer_norm` over `[x, -x]`, whose mean is zero.
        LayerNormPair = "layer_norm_pair",
    }

    /// How quantized weights relate to real ones.
    Scheme {
        /// `weight = scale * integer`, zero at zero.
        LinearSymmetric = "linear_symmetric",
    }

    /// Dtype in which projection weights are stored.
    WeightDtype {
        /// Not quantized.
        Float16 = "float16",
        /// 8-bit integers.
        Int8 = "int8",
        /// 4-bit integers.
        Int4 = "int4",
    }

    /// How many weights share a scale.
    Granularity {
        /// Those of one output channel.
        PerChannel = "per_channel",
        /// `block_size` inputs of one output channel; the ANE does not take it.
        PerBlock = "per_block",
        /// All weights of a tensor.
        PerTensor = "per_tensor",
    }

    /// What a package must show on Core ML.
    Requirement {
        /// It compiles, loads and runs to the end.
        Load = "load",
        /// Its outputs are those of the reference runner.
        Numerics = "numerics",
        /// Core ML's plan prefers the Neural Engine for every op.
        Ane = "ane",
    }

    /// How a weight divided by its scale becomes an integer.
    Rounding {
        /// To the nearest, ties to even.
        Nearest = "nearest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_others_are_refused_by_name() {
        for dtype in WeightDtype::ALL {
            assert_eq!(dtype.to_string().parse::<WeightDtype>().unwrap(), *dtype);
        }
        let error = "int9".parse::<WeightDtype>().unwrap_err();
        assert_eq!(error.to_string(), "`int9` is not one of `float16`, `int8`, `int4`");
    }
}
