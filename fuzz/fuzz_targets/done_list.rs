#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throttle::fuzzing::done_list(data));
