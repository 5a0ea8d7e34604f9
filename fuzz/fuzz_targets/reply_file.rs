#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throttle::fuzzing::reply_file(data));
