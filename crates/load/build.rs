//! Looks for the Boehm collector, which one antagonist needs and nothing else.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(have_libgc)");
    match pkg_config::Config::new().cargo_metadata(false).probe("bdw-gc") {
        Ok(library) => {
            println!("cargo::rustc-cfg=have_libgc");
            for path in library.link_paths {
                println!("cargo::rustc-link-arg-bins=-L{}", path.display());
            }
            // The antagonist alone is linked with it, not the programs that use this library.
            println!("cargo::rustc-link-arg-bins=-lgc");
        }
        Err(_) => {
            println!(
                "cargo::warning=libgc (Boehm) not found: `quell-antagonist gc` will say so; \
                 on Debian: apt-get install libgc-dev"
            );
        }
    }
}
