//! Links the stand-ins, which tools/standin.py has compiled, and the Objective-C libraries that it has unpacked.

fn main() {
    let folder = std::env::var("STANDIN_FOLDER").expect("tools/standin.py says where the stand-ins are");
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=static:+whole-archive=standin");
    for path in std::env::split_paths(&std::env::var_os("STANDIN_LIBRARIES").unwrap_or_default()) {
        println!("cargo:rustc-link-search=native={}", path.display());
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", path.display());
        println!("cargo:rustc-link-arg=-Wl,-rpath-link,{}", path.display());
    }
    println!("cargo:rustc-link-lib=dylib=gnustep-base");
    println!("cargo:rustc-link-lib=dylib=objc");
    println!("cargo:rerun-if-env-changed=STANDIN_FOLDER");
    println!("cargo:rerun-if-env-changed=STANDIN_LIBRARIES");
    println!("cargo:rerun-if-changed={folder}/libstandin.a");
}
