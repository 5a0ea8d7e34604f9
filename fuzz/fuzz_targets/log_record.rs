#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throttle::fuzzing::log_record(data));
