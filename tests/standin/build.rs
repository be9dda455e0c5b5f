//! Links the stand-ins, which tools/standin.py has compiled, and the Objective-C libraries that it has unpacked.

fn main() {
    let folder = std::env::var("STANDIN_FOLDER").expect("tools/standin.py says where the stand-ins are");
    for path in std::env::split_paths(&std::env::var_os("STANDIN_LIBRARIES").unwrap_or_default()) {
        println!("cargo:rustc-link-search=native={}", path.display());
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{0},-rpath-link,{0}", path.display());
    }
    println!("cargo:rustc-link-arg-bins=-Wl,--whole-archive,{folder}/libstandin.a,--no-whole-archive");
    println!("cargo:rustc-link-arg-bins=-lgnustep-base");
    println!("cargo:rustc-link-arg-bins=-lobjc");
    println!("cargo:rerun-if-env-changed=STANDIN_FOLDER");
    println!("cargo:rerun-if-env-changed=STANDIN_LIBRARIES");
    println!("cargo:rerun-if-changed={folder}/libstandin.a");
}
