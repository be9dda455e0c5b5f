//! The Python package `anebake`, compiled into the program.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::OnceLock;

/// One module: its full name, whether it is a package, its text.
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) is_package: bool,
    pub(super) source: &'static str,
}

macro_rules! module {
    ($name:literal, $file:literal) => {
        Module {
            name: $name,
            is_package: false,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/python/anebake/", $file)),
        }
    };
    ($name:literal, $file:literal, package) => {
        Module { is_package: true, ..module!($name, $file) }
    };
}

/// Every module of the package, sorted by name.
pub(super) const MODULES: &[Module] = &[
    module!("anebake", "__init__.py", package),
    module!("anebake.archs", "archs/__init__.py", package),
    module!("anebake.archs.llama", "archs/llama.py"),
    module!("anebake.archs.qwen2", "archs/qwen2.py"),
    module!("anebake.archs.qwen3", "archs/qwen3.py"),
    module!("anebake.arrays", "arrays.py"),
    module!("anebake.bake", "bake.py"),
    module!("anebake.block", "block.py"),
    module!("anebake.graph", "graph.py"),
    module!("anebake.head", "head.py"),
    module!("anebake.kv", "kv.py"),
    module!("anebake.ladder", "ladder.py"),
    module!("anebake.layers", "layers.py"),
    module!("anebake.oracle", "oracle.py"),
    module!("anebake.package", "package.py"),
    module!("anebake.request", "request.py"),
    module!("anebake.rope", "rope.py"),
    module!("anebake.weights", "weights.py"),
];

/// What runs first: makes [`MODULES`] importable.
pub(super) const EMBED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/python/embed.py"));

/// SHA-256, in hex, of the Python package: over name, NUL, source, NUL of each module, sorted by name. A cached
/// template or block is valid for one digest only.
pub fn sources_digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(digest_modules)
}

fn digest_modules() -> String {
    let mut digest = Sha256::new();
    for module in MODULES {
        digest.update(module.name);
        digest.update([0]);
        digest.update(module.source);
        digest.update([0]);
    }
    digest.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes any text");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_module_file_is_embedded_under_its_own_name_in_order() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let mut found: Vec<(String, String)> = walkdir::WalkDir::new(root.join("anebake"))
            .into_iter()
            .map(Result::unwrap)
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "py"))
            .map(|entry| {
                let relative = entry.path().strip_prefix(&root).unwrap().with_extension("");
                let name = relative.to_str().unwrap().replace('/', ".");
                let name = name.strip_suffix(".__init__").unwrap_or(&name).to_owned();
                (name, std::fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        found.sort();
        let embedded: Vec<_> = MODULES.iter().map(|m| (m.name.to_owned(), m.source.to_owned())).collect();
        assert_eq!(found, embedded);
    }
}
