//! Where Core ML plans to run each op, summed up.
//!
//! Three words that must not be mixed up: a device *supports* an op, the plan *prefers* a device for it, and the op *ran*
//! somewhere. The plan tells the first two; nothing in Core ML's interface tells the third.

use serde::{Deserialize, Serialize};

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The GPU.
    Gpu,
    /// The Neural Engine.
    Ane,
    /// One that this version of anebake does not know.
    Other,
}

impl Device {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Ane => "ane",
            Self::Other => "other",
        }
    }
}

/// What the plan says of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct OpPlacement {
    /// Type, for instance `ios18.conv`.
    pub operator: String,
    /// Name of its first output.
    pub output: String,
    /// Where the plan wants it; none where the plan says nothing about it.
    pub preferred: Option<Device>,
    /// Where it could run.
    pub supported: Vec<Device>,
    /// Its share of the function's estimated cost.
    pub cost: Option<f64>,
}

impl OpPlacement {
    /// Whether it computes nothing at run time: plans say nothing about such ops.
    fn is_constant(&self) -> bool {
        let name = self.operator.rsplit('.').next().unwrap_or_default();
        name == "const" || name.starts_with("constexpr_")
    }
}

/// Where the ops of one function are planned to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The function.
    pub function: String,
    /// Ops that compute something.
    pub ops: usize,
    /// Those for which the plan prefers the Neural Engine.
    pub preferred_on_ane: usize,
    /// Those that the Neural Engine supports.
    pub supported_by_ane: usize,
    /// Those about which the plan says nothing.
    pub unknown: usize,
    /// Share of the estimated cost for which the plan prefers the Neural Engine; absent where no cost is known.
    pub cost_preferred_on_ane: Option<f64>,
    /// Share of the estimated cost that the Neural Engine supports.
    pub cost_supported_by_ane: Option<f64>,
    /// The ops that are preferred elsewhere or unknown, the costliest first.
    pub elsewhere: Vec<Elsewhere>,
}

/// An op that is not planned for the Neural Engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// Type.
    pub operator: String,
    /// Name of its first output.
    pub output: String,
    /// Where the plan wants it; absent where the plan says nothing.
    pub preferred: Option<Device>,
    /// Whether the Neural Engine supports it: then the plan had another reason.
    pub supported_by_ane: bool,
    /// Its share of the function's estimated cost.
    pub cost: Option<f64>,
}

impl Placement {
    /// Sums up the ops of a function.
    pub fn new(function: &str, ops: &[OpPlacement]) -> Self {
        let ops: Vec<&OpPlacement> = ops.iter().filter(|op| !op.is_constant() || op.preferred.is_some()).collect();
        let preferred = |op: &&&OpPlacement| op.preferred == Some(Device::Ane);
        let supported = |op: &&&OpPlacement| op.supported.contains(&Device::Ane);
        let total: f64 = ops.iter().filter_map(|op| op.cost).sum();
        let share = |chosen: &dyn Fn(&&&OpPlacement) -> bool| {
            (total > 0.0).then(|| ops.iter().filter(|op| chosen(op)).filter_map(|op| op.cost).sum::<f64>() / total)
        };
        let mut elsewhere: Vec<Elsewhere> = ops
            .iter()
            .filter(|op| !preferred(op))
            .map(|op| Elsewhere {
                operator: op.operator.clone(),
                output: op.output.clone(),
                preferred: op.preferred,
                supported_by_ane: supported(&op),
                cost: op.cost,
            })
            .collect();
        elsewhere.sort_by(|a, b| b.cost.unwrap_or_default().total_cmp(&a.cost.unwrap_or_default()));
        Self {
            function: function.to_owned(),
            ops: ops.len(),
            preferred_on_ane: ops.iter().filter(preferred).count(),
            supported_by_ane: ops.iter().filter(supported).count(),
            unknown: ops.iter().filter(|op| op.preferred.is_none()).count(),
            cost_preferred_on_ane: share(&preferred),
            cost_supported_by_ane: share(&supported),
            elsewhere,
        }
    }

    /// Whether every op is known and preferred on the Neural Engine.
    pub fn all_preferred_on_ane(&self) -> bool {
        self.ops > 0 && self.preferred_on_ane == self.ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(operator: &str, preferred: Option<Device>, ane: bool, cost: Option<f64>) -> OpPlacement {
        let supported = if ane { vec![Device::Cpu, Device::Ane] } else { vec![Device::Cpu] };
        OpPlacement { operator: operator.into(), output: format!("{operator}_0"), preferred, supported, cost }
    }

    #[test]
    fn shares_count_ops_and_cost_and_leave_constants_out() {
        let placement = Placement::new(
            "decode",
            &[
                op("const", None, false, None),
                op("ios18.constexpr_blockwise_shift_scale", None, false, None),
                op("ios18.conv", Some(Device::Ane), true, Some(0.6)),
                op("ios18.softmax", Some(Device::Cpu), true, Some(0.1)),
                op("ios18.gather", Some(Device::Cpu), false, Some(0.3)),
                op("ios18.odd", None, false, None),
            ],
        );
        assert_eq!((placement.ops, placement.preferred_on_ane, placement.supported_by_ane), (4, 1, 2));
        assert_eq!(placement.unknown, 1);
        assert!((placement.cost_preferred_on_ane.unwrap() - 0.6).abs() < 1e-12);
        assert!((placement.cost_supported_by_ane.unwrap() - 0.7).abs() < 1e-12);
        let names: Vec<(&str, bool)> =
            placement.elsewhere.iter().map(|op| (op.operator.as_str(), op.supported_by_ane)).collect();
        assert_eq!(names, [("ios18.gather", false), ("ios18.softmax", true), ("ios18.odd", false)]);
        assert!(!placement.all_preferred_on_ane());
    }

    #[test]
    fn nothing_known_is_never_all_on_the_ane() {
        let empty = Placement::new("decode", &[]);
        assert_eq!((empty.all_preferred_on_ane(), empty.cost_preferred_on_ane), (false, None));
        let unknown = Placement::new("decode", &[op("ios18.conv", None, true, None)]);
        assert!(!unknown.all_preferred_on_ane());
        let whole = Placement::new("decode", &[op("ios18.conv", Some(Device::Ane), true, None)]);
        assert!(whole.all_preferred_on_ane() && whole.elsewhere.is_empty());
    }
}
