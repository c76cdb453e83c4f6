//! Gives the shared library its name, and keeps it in memory once it was loaded.

#![forbid(unsafe_code)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number changes when a program that was linked with an older one would break.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsakia.so.0");
    // Threads of lanes run its code, and thread-locals have destructors there, after a `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
