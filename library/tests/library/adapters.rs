//! The adapters, each with the real crate that it is for.

use crate::limiters::ms;
use throttle_limits::Limiter;
use throttle_limits::limiter::{AcquireError, Keyed};
use tokio::time::Instant;

#[cfg(feature = "tower")]
mod tower_services {
    use super::*;
    use std::convert::Infallible;
    use throttle_limits::adapters::tower::{BoxError, LimitLayer};
    use tower::limit::ConcurrencyLimitLayer;
    use tower::util::BoxCloneService;
    use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

    fn behind(layer: LimitLayer<u64>) -> BoxCloneService<u64, u64, BoxError> {
        let inner = service_fn(|request: u64| async move { Ok::<_, Infallible>(request * 2) });
        ServiceBuilder::new().layer(layer).service(inner).boxed_clone()
    }

    fn is_refused(answer: Result<u64, BoxError>) -> bool {
        answer.unwrap_err().downcast::<AcquireError>().is_ok_and(|error| matches!(*error, AcquireError::TooLong { .. }))
    }

    #[tokio::test(start_paused = true)]
    async fn requests_to_a_service_wait_for_their_limit() {
        let mut service = behind(LimitLayer::new(&Limiter::new(10, 1).unwrap()));
        let begun = Instant::now();
        let calls: Vec<_> = (0..4).map(|request| service.call(request)).collect();
        for (request, call) in (0..4).zip(calls) {
            assert_eq!(
                (call.await.unwrap(), begun.elapsed()),
                (request * 2, ms(100) * u32::try_from(request).unwrap())
            );
        }
        drop(service.call(5));
        assert_eq!(service.ready().await.unwrap().call(6).await.unwrap(), 12);
        assert_eq!(begun.elapsed(), ms(400), "a call that is dropped takes nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_have_their_cost_and_are_refused_at_once() {
        let limiter = Limiter::new(10, 10).unwrap();
        let mut service = behind(LimitLayer::with_costs(&limiter, |request: &u64| *request).shed());
        assert_eq!(service.call(8).await.unwrap(), 16);
        assert!(is_refused(service.call(3).await));
        assert_eq!(service.call(2).await.unwrap(), 4);
        let mut patient = behind(LimitLayer::with_costs(&limiter, |request: &u64| *request).timeout(ms(300)));
        assert!(is_refused(patient.call(4).await));
        assert_eq!(patient.call(3).await.unwrap(), 6);
    }

    /// Of 5000 calls in one task, 4872 were refused.
    #[tokio::test]
    async fn a_task_that_calls_without_a_rest_sheds_nothing() {
        let limiter = Limiter::new(10_000, 10_000).unwrap();
        let mut service = behind(LimitLayer::new(&limiter).shed());
        for call in 0..5000 {
            assert_eq!(service.call(call).await.unwrap(), 2 * call);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_of_the_requests_has_limits_of_its_own() {
        let keyed: Keyed<u64> = Keyed::new(1, 1).unwrap();
        let mut service = behind(LimitLayer::per_key(&keyed, |request: &u64| request % 10).shed());
        assert_eq!(service.call(1).await.unwrap(), 2);
        assert!(is_refused(service.call(11).await));
        assert_eq!(service.call(12).await.unwrap(), 24);
        let mut patient = behind(LimitLayer::per_key(&keyed, |request: &u64| request % 10));
        assert_eq!(patient.call(21).await.unwrap(), 42);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_its_key_takes_no_place() {
        let keyed: Keyed<u64> = Keyed::new(1, 1).unwrap();
        let inner = service_fn(|request: u64| async move {
            tokio::time::sleep(ms(10)).await;
            Ok::<_, Infallible>(request)
        });
        let service = ServiceBuilder::new()
            .layer(LimitLayer::per_key(&keyed, |request: &u64| request % 10))
            .layer(ConcurrencyLimitLayer::new(2))
            .service(inner);
        let begun = Instant::now();
        let slow: Vec<_> = (0..5).map(|turn| tokio::spawn(service.clone().oneshot(10 * turn))).collect();
        for other in 1..10 {
            assert_eq!(service.clone().oneshot(other).await.unwrap(), other);
        }
        assert!(begun.elapsed() <= ms(100), "{:?}", begun.elapsed());
        for call in slow {
            call.await.unwrap().unwrap();
        }
        assert_eq!(begun.elapsed(), ms(4010));
    }
}

#[cfg(feature = "stream")]
mod streams {
    use super::*;
    use futures_util::stream::FusedStream;
    use futures_util::{SinkExt, Stream, StreamExt, sink, stream};
    use throttle_limits::adapters::stream::{SinkError, ThrottleExt, ThrottleSinkExt};

    #[tokio::test(start_paused = true)]
    async fn a_stream_lets_each_item_through_once_it_is_granted() {
        let limiter = Limiter::new(10, 1).unwrap();
        let begun = Instant::now();
        let mut items = stream::iter(0..4).throttle(&limiter);
        assert_eq!(items.size_hint(), (0, Some(4)), "any item may be refused");
        for item in 0..4 {
            assert_eq!((items.next().await, begun.elapsed()), (Some(item), ms(100) * item));
        }
        assert_eq!(items.next().await, None);
    }

    /// `select!` of futures needs no `fuse`.
    #[tokio::test(start_paused = true)]
    async fn a_stream_reports_that_it_has_ended() {
        let limiter = Limiter::new(10, 1).unwrap();
        let mut items = stream::iter(0..2).fuse().throttle(&limiter);
        assert_eq!((items.select_next_some().await, items.select_next_some().await), (0, 1));
        assert!(!items.is_terminated());
        assert_eq!((items.next().await, items.is_terminated()), (None, true));
        limiter.close();
        let mut refused = stream::iter(0..2).fuse().throttle(&limiter);
        assert_eq!((refused.next().await, refused.is_terminated()), (None, true));
        let mut ended = stream::iter(0..0).fuse();
        assert_eq!(ended.next().await, None);
        assert!(ended.throttle(&limiter).is_terminated());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_item_ends_a_stream_or_goes_to_a_closure() {
        let limiter = Limiter::new(10, 1).unwrap();
        limiter.close();
        let mut ends = stream::iter(0..2).throttle(&limiter);
        assert_eq!((ends.next().await, ends.next().await, ends.size_hint()), (None, None, (0, Some(0))));
        let (send, refused) = std::sync::mpsc::channel();
        let goes_on =
            stream::iter(0..2).throttle(&limiter).on_refusal(move |item, error| send.send((item, error)).unwrap());
        assert!(goes_on.collect::<Vec<i32>>().await.is_empty());
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), [(0, AcquireError::Closed), (1, AcquireError::Closed)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sink_is_ready_once_an_item_is_granted() {
        let limiter = Limiter::new(10, 1).unwrap();
        let begun = Instant::now();
        let mut sent = Vec::new();
        let inner = sink::unfold(&mut sent, |sent, item: u32| async move {
            sent.push(item);
            Ok::<_, AcquireError>(sent)
        });
        let mut inner = Box::pin(inner.throttle_sink(&limiter));
        for item in 0..3 {
            inner.feed(item).await.unwrap();
            assert_eq!(begun.elapsed(), ms(100) * item);
        }
        limiter.close();
        let refused = inner.send(3).await;
        assert!(matches!(refused, Err(SinkError::Refused(AcquireError::Closed))), "{refused:?}");
        inner.close().await.unwrap();
        drop(inner);
        assert_eq!(sent, [0, 1, 2]);
    }
}

#[cfg(feature = "serde")]
#[test]
fn limits_are_read_from_files_and_written_as_text() {
    use throttle_limits::{Limit, Rate};
    let text = r#"["5/s,burst=10","5000/h,window,slack=250ms","unlimited"]"#;
    let limits: Vec<Limit> = serde_json::from_str(text).unwrap();
    assert_eq!(limits[0], "5/s,burst=10".parse().unwrap());
    assert_eq!(serde_json::to_string(&limits).unwrap(), text);
    let rate: Rate = serde_json::from_str("\"0.5/s\"").unwrap();
    assert_eq!(serde_json::to_string(&rate).unwrap(), "\"0.5/s\"");
    let error = serde_json::from_str::<Limit>("\"5 per second\"").unwrap_err().to_string();
    assert!(error.contains("5/s"), "{error}");
}
