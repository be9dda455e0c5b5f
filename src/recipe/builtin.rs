//! The recipes that are compiled in.

/// A recipe that is compiled in.
pub(super) struct BuiltIn {
    /// Name, equal to the one in its text.
    pub name: &'static str,
    /// TOML.
    pub text: &'static str,
    /// Whether its meaning may no longer change.
    pub frozen: bool,
}

macro_rules! built_in {
    ($name:literal, frozen: $frozen:literal) => {
        BuiltIn {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/", $name, ".toml")),
            frozen: $frozen,
        }
    };
}

/// Every built-in recipe, the flagship first.
pub(super) const ALL: &[BuiltIn] = &[
    built_in!("int8-v1", frozen: false),
    built_in!("int8-ane-v1", frozen: false),
    built_in!("int8-io-v1", frozen: false),
    built_in!("int8-rtn-v1", frozen: true),
    built_in!("int8-rtn-f32-v1", frozen: true),
    built_in!("int8-block32-v1", frozen: true),
    built_in!("fp16-v1", frozen: true),
    built_in!("fp16-ane-v1", frozen: false),
    built_in!("fp16-io-v1", frozen: false),
];

/// The built-in recipe of that name.
pub(super) fn find(name: &str) -> Option<&'static BuiltIn> {
    ALL.iter().find(|recipe| recipe.name == name)
}
