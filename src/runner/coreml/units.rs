//! Which of a machine's processors Core ML may use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The processors that Core ML may use; which of them it does use is its own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeUnits {
    /// The CPU.
    Cpu,
    /// CPU and GPU.
    CpuAndGpu,
    /// CPU and Neural Engine.
    #[default]
    CpuAndAne,
    /// All there are.
    All,
}

impl ComputeUnits {
    /// Every case.
    pub const ALL: &'static [Self] = &[Self::Cpu, Self::CpuAndGpu, Self::CpuAndAne, Self::All];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAndGpu => "cpu-and-gpu",
            Self::CpuAndAne => "cpu-and-ane",
            Self::All => "all",
        }
    }

    /// Whether the Neural Engine is among them.
    pub const fn has_ane(self) -> bool {
        matches!(self, Self::CpuAndAne | Self::All)
    }
}

impl fmt::Display for ComputeUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ComputeUnits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|units| units.as_str() == text).ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|units| units.as_str()).collect();
            format!("`{text}` is none of {}", words.join(", "))
        })
    }
}

impl Serialize for ComputeUnits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ComputeUnits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_only_two_have_the_ane() {
        for units in ComputeUnits::ALL {
            assert_eq!(units.to_string().parse::<ComputeUnits>().unwrap(), *units);
            assert_eq!(serde_json::from_value::<ComputeUnits>(serde_json::json!(units)).unwrap(), *units);
        }
        assert!("gpu".parse::<ComputeUnits>().is_err());
        let with: Vec<&str> = ComputeUnits::ALL.iter().filter(|units| units.has_ane()).map(|u| u.as_str()).collect();
        assert_eq!(with, ["cpu-and-ane", "all"]);
    }
}
