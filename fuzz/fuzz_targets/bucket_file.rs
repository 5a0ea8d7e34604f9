#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throttle_limits::fuzzing::bucket_file(data));
