//! Which Python environment to use and what it holds, read from its files: nothing is started.

use super::interpreter::linked_version;
use crate::error::Fault;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The coremltools that the graphs and the quantizer are made for; a patch release is fine.
const COREMLTOOLS: &str = "9.0";

/// numpy breaks parts of coremltools 9.0 from this version on.
const NUMPY_BELOW: (u32, u32) = (2, 4);

pub(super) const SETUP: &str = "run `make setup`, or name an interpreter that has it in `ANEBAKE_PYTHON`";

/// Versions of what decides a package's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolVersions {
    /// coremltools, for instance `9.0`.
    pub coremltools: String,
    /// numpy.
    pub numpy: String,
    /// protobuf.
    pub protobuf: String,
    /// The libpython that this program is linked with, for instance `3.11.7`.
    pub python: String,
}

impl fmt::Display for ToolVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coremltools, numpy, protobuf, python } = self;
        write!(f, "coremltools {coremltools}, numpy {numpy}, protobuf {protobuf}, Python {python}")
    }
}

/// A Python interpreter and the folder where its packages lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    executable: PathBuf,
    site_packages: PathBuf,
}

impl Environment {
    /// Chooses an environment: `explicit`, else `ANEBAKE_PYTHON`; else the first that holds coremltools of:
    /// `VIRTUAL_ENV`, `./.venv`, `.venv` of the project that this program was built in, the interpreter that it was
    /// built against. `explicit` and `ANEBAKE_PYTHON` name an interpreter or an environment's folder and are not
    /// passed over.
    ///
    /// # Errors
    /// An environment fault where there is none, or where the one that was named does not exist.
    pub fn find(explicit: Option<&Path>) -> Result<Self> {
        let named = std::env::var_os("ANEBAKE_PYTHON").filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = explicit.map(Path::to_path_buf).or(named) {
            return Self::at(&path);
        }
        let mut candidates: Vec<PathBuf> = Vec::new();
        candidates.extend(std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty()).map(PathBuf::from));
        candidates.extend(std::env::current_dir().ok().map(|folder| folder.join(".venv")));
        // target/<profile>/anebake
        let project = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(3)?.join(".venv")));
        candidates.extend(project);
        candidates.extend(Some(env!("ANEBAKE_BUILD_PYTHON")).filter(|path| !path.is_empty()).map(PathBuf::from));
        Self::first_with_coremltools(&candidates)
    }

    fn first_with_coremltools(candidates: &[PathBuf]) -> Result<Self> {
        let found = candidates.iter().filter_map(|path| Self::at(path).ok());
        found.into_iter().find(|environment| environment.package_version("coremltools").is_some()).ok_or_else(|| {
            let places: Vec<_> = candidates.iter().map(|path| format!("`{}`", path.display())).collect();
            let message = format!("no Python environment with coremltools; looked at {}", places.join(", "));
            Fault::environment(message).with_hint(SETUP).into()
        })
    }

    /// The environment of an interpreter (`…/bin/python`) or of a folder that has `bin/python`.
    fn at(path: &Path) -> Result<Self> {
        let executable = if path.is_dir() { path.join("bin").join("python") } else { path.to_path_buf() };
        // Made absolute but not resolved: the link in a venv's bin is what tells Python that it is a venv.
        let executable = std::path::absolute(&executable).unwrap_or(executable);
        if !executable.is_file() {
            return Err(Fault::environment(format!("no Python interpreter at `{}`", executable.display()))
                .with_hint(SETUP)
                .into());
        }
        let prefix = |executable: &Path| executable.ancestors().nth(2).map(Path::to_path_buf);
        let own = prefix(&executable).filter(|prefix| prefix.join("pyvenv.cfg").is_file());
        let root = own.or_else(|| prefix(&std::fs::canonicalize(&executable).ok()?));
        let site_packages = root.and_then(|root| {
            let version = venv_version(&root).unwrap_or_else(|| linked_version().to_owned());
            let folder = |minor: &str| root.join("lib").join(format!("python{minor}")).join("site-packages");
            Some(folder(minor(&version)?)).filter(|folder| folder.is_dir())
        });
        let site_packages = site_packages.or_fault(|| {
            Fault::environment(format!(
                "`{}` has no site-packages for Python {}, which this program is linked with",
                executable.display(),
                minor(linked_version()).unwrap_or("?")
            ))
            .with_hint(rebuild(&executable))
        })?;
        Ok(Self { executable, site_packages })
    }

    /// The interpreter.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Where the packages lie.
    pub fn site_packages(&self) -> &Path {
        &self.site_packages
    }

    /// Versions of the tools, from the names of `*.dist-info` folders; checked.
    ///
    /// # Errors
    /// Environment faults: another Python minor version than the linked one, a package that is missing, coremltools
    /// other than 9.0, numpy 2.4 or later.
    pub fn tool_versions(&self) -> Result<ToolVersions> {
        let (linked, executable) = (linked_version(), self.executable.display());
        let own = self.python_version();
        let own = own.as_deref().unwrap_or("?");
        if Some(own) != minor(linked) {
            return Err(Fault::environment(format!(
                "`{executable}` is Python {own}, but this program is linked with Python {linked}"
            ))
            .with_hint(rebuild(&self.executable))
            .into());
        }
        let installed = self.installed();
        let version = |package: &str| {
            version_among(&installed, package).map(str::to_owned).or_fault(|| {
                Fault::environment(format!("`{package}` is not installed for `{executable}`")).with_hint(SETUP)
            })
        };
        let (coremltools, numpy) = (version("coremltools")?, version("numpy")?);
        if coremltools != COREMLTOOLS && !coremltools.starts_with(&format!("{COREMLTOOLS}.")) {
            return Err(Fault::environment(format!(
                "coremltools for `{executable}` is {coremltools}, but the graphs are made for {COREMLTOOLS}"
            ))
            .with_hint(install(&self.executable, &format!("coremltools=={COREMLTOOLS}")))
            .into());
        }
        let parts: Option<(u32, u32)> = minor(&numpy)
            .and_then(|text| text.split_once('.'))
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        if parts.is_none_or(|parts| parts >= NUMPY_BELOW) {
            let (major, minor) = NUMPY_BELOW;
            return Err(Fault::environment(format!(
                "numpy for `{executable}` is {numpy}, but coremltools {COREMLTOOLS} needs one below {major}.{minor}"
            ))
            .with_hint(install(&self.executable, &format!("numpy<{major}.{minor}")))
            .into());
        }
        Ok(ToolVersions { coremltools, numpy, protobuf: version("protobuf")?, python: linked.to_owned() })
    }

    /// The minor version of its Python, for instance `3.11`, from the name of the folder of its packages.
    pub fn python_version(&self) -> Option<String> {
        let folder = self.site_packages.parent()?.file_name()?.to_str()?;
        folder.strip_prefix("python").map(str::to_owned)
    }

    /// The version of an installed package, unchecked.
    pub fn package_version(&self, package: &str) -> Option<String> {
        version_among(&self.installed(), package).map(str::to_owned)
    }

    /// Names of everything in the folder of packages.
    fn installed(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.site_packages).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

/// The version in the name of a package's `dist-info` folder.
fn version_among<'a>(names: &'a [String], package: &str) -> Option<&'a str> {
    names.iter().find_map(|name| name.strip_suffix(".dist-info")?.strip_prefix(package)?.strip_prefix('-'))
}

/// `version` (venv) or `version_info` (virtualenv, uv) of a folder's `pyvenv.cfg`.
fn venv_version(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("pyvenv.cfg")).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        matches!(key.trim(), "version" | "version_info").then(|| value.trim().to_owned())
    })
}

/// `3.11` of `3.11.7`.
fn minor(version: &str) -> Option<&str> {
    let (first, rest) = version.split_once('.')?;
    let length = rest.find('.').unwrap_or(rest.len());
    version.get(..first.len() + 1 + length)
}

fn rebuild(executable: &Path) -> String {
    format!("rebuild with `PYO3_PYTHON={} cargo build --release`", executable.display())
}

fn install(executable: &Path, requirement: &str) -> String {
    format!("run `{} -m pip install '{requirement}'`", executable.display())
}

trait OptionOrFault<T> {
    fn or_fault(self, fault: impl FnOnce() -> Fault) -> Result<T>;
}

impl<T> OptionOrFault<T> for Option<T> {
    fn or_fault(self, fault: impl FnOnce() -> Fault) -> Result<T> {
        self.ok_or_else(|| fault().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Status, hints, status};

    /// A folder that looks like a venv of the given Python with the given packages.
    fn venv(version: &str, packages: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join(format!("lib/python{}/site-packages", minor(version).unwrap()));
        std::fs::create_dir_all(&site).unwrap();
        std::fs::create_dir_all(root.path().join("bin")).unwrap();
        std::fs::write(root.path().join("bin/python"), "").unwrap();
        std::fs::write(root.path().join("pyvenv.cfg"), format!("home = /nowhere\nversion = {version}\n")).unwrap();
        for package in packages {
            std::fs::create_dir(site.join(format!("{package}.dist-info"))).unwrap();
        }
        root
    }

    fn refused(version: &str, packages: &[&str]) -> (String, String) {
        let root = venv(version, packages);
        let error = Environment::at(root.path()).unwrap().tool_versions().unwrap_err();
        assert_eq!(status(&error), Status::Environment);
        let home = root.path().to_str().unwrap();
        let hint = hints(&error).next().unwrap().replace(home, "HOME");
        (error.to_string().replace(home, "HOME"), hint)
    }

    #[test]
    fn versions_come_from_the_names_of_dist_info_folders() {
        let root = venv(linked_version(), &["coremltools-9.0.1", "numpy-2.3.5", "protobuf-7.36.2", "numpy_extra-9"]);
        let versions = Environment::at(root.path()).unwrap().tool_versions().unwrap();
        assert_eq!(
            versions,
            ToolVersions {
                coremltools: "9.0.1".into(),
                numpy: "2.3.5".into(),
                protobuf: "7.36.2".into(),
                python: linked_version().into()
            }
        );
    }

    #[test]
    fn a_missing_package_is_named_with_how_to_get_it() {
        let (message, hint) = refused(linked_version(), &["coremltools-9.0", "numpy-2.3.5"]);
        assert_eq!(message, "`protobuf` is not installed for `HOME/bin/python`");
        assert!(hint.starts_with("run `make setup`"), "{hint}");
    }

    #[test]
    fn another_coremltools_is_refused_with_both_versions() {
        for version in ["8.3.0", "9.1", "9.01"] {
            let (message, hint) =
                refused(linked_version(), &[&format!("coremltools-{version}"), "numpy-2.3.5", "protobuf-7.36.2"]);
            assert_eq!(
                message,
                format!("coremltools for `HOME/bin/python` is {version}, but the graphs are made for 9.0")
            );
            assert_eq!(hint, "run `HOME/bin/python -m pip install 'coremltools==9.0'`");
        }
    }

    #[test]
    fn a_numpy_that_breaks_coremltools_is_refused() {
        for version in ["2.4.0", "2.10.1", "3.0.0"] {
            let (message, hint) =
                refused(linked_version(), &["coremltools-9.0", &format!("numpy-{version}"), "protobuf-7.36.2"]);
            assert_eq!(
                message,
                format!("numpy for `HOME/bin/python` is {version}, but coremltools 9.0 needs one below 2.4")
            );
            assert_eq!(hint, "run `HOME/bin/python -m pip install 'numpy<2.4'`");
        }
    }

    #[test]
    fn another_python_than_the_linked_one_is_refused() {
        let (message, hint) = refused("3.7.1", &["coremltools-9.0", "numpy-1.26.4", "protobuf-7.36.2"]);
        let linked = linked_version();
        assert_eq!(
            message,
            format!("`HOME/bin/python` is Python 3.7, but this program is linked with Python {linked}")
        );
        assert_eq!(hint, "rebuild with `PYO3_PYTHON=HOME/bin/python cargo build --release`");
    }

    #[test]
    fn an_environment_without_coremltools_is_passed_over_unless_named() {
        let (without, with) = (venv(linked_version(), &[]), venv(linked_version(), &["coremltools-9.0"]));
        let candidates = [without.path().to_path_buf(), "/nowhere".into(), with.path().to_path_buf()];
        let found = Environment::first_with_coremltools(&candidates).unwrap();
        assert_eq!(found.executable(), with.path().join("bin/python"));
        let error = Environment::first_with_coremltools(&candidates[..2]).unwrap_err();
        assert!(error.to_string().ends_with("`/nowhere`"), "{error}");
        assert_eq!(Environment::find(Some(without.path())).unwrap().executable(), without.path().join("bin/python"));
    }

    #[test]
    fn a_named_interpreter_that_does_not_exist_is_an_error() {
        let error = Environment::find(Some(Path::new("/nowhere/bin/python"))).unwrap_err();
        assert_eq!(error.to_string(), "no Python interpreter at `/nowhere/bin/python`");
        assert_eq!(status(&error), Status::Environment);
    }
}
