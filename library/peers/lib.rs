//! Benches and examples of the library that take other crates.
