//! The library: the laws, checked against a slow model, and each requirement of its limiters. Codes in names, such as `a5_`,
//! are those of `library/docs/requirements.md`.

#[cfg(any(feature = "serde", feature = "stream", feature = "tower", feature = "tracing"))]
mod adapters;
mod conformance;
mod guide;
mod holds;
mod keyed;
mod keyed_within;
mod laws;
mod leaky_bucket;
mod limiter_changes;
mod limiter_conformance;
mod limiter_faces;
mod limiter_faults;
mod limiter_interleavings;
mod limiter_joint;
mod limiter_leaky;
mod limiter_settle;
mod limiter_surface;
mod limiter_times;
mod limiter_token_bucket;
mod limiter_windows;
mod limiters;
mod line_plain;
mod model;
mod paces;
mod public_api;
#[cfg(feature = "shared")]
mod replica;
#[cfg(feature = "shared")]
mod replica_laws;
mod rounds;
mod runtime_ends;
mod scheduler;
mod semaphore;
mod semaphore_many;
mod subjects;
mod task_budget;
mod wakeups;
mod warm_up;
mod window;
