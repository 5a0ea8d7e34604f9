#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throttle_limits::fuzzing::limit_text(data));
