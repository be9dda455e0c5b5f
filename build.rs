//! Links libpython so that the program finds it at run time, and remembers which interpreter it was built for. Says where
//! there is Core ML: on macOS, and where tests/standin stands in for it.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    pyo3_build_config::add_libpython_rpath_link_args();
    pyo3_build_config::add_python_framework_link_args();
    let config = pyo3_build_config::get();
    println!("cargo:rustc-env=ANEBAKE_BUILD_PYTHON={}", config.executable().unwrap_or(""));
    println!("cargo:rerun-if-env-changed=PYO3_PYTHON");
    println!("cargo:rustc-check-cfg=cfg(coreml)");
    let macos = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    if macos || std::env::var_os("CARGO_CFG_COREML_STANDIN").is_some() {
        println!("cargo:rustc-cfg=coreml");
    }
}
