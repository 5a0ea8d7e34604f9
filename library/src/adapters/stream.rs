//! Streams and sinks of [futures](https://docs.rs/futures) that keep to a limit.
//!
//! ```
//! use futures_util::{StreamExt, stream};
//! use throttle_limits::Limiter;
//! use throttle_limits::adapters::stream::ThrottleExt;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(10, 1)?;
//! let mut pages = stream::iter(1..=3).throttle(&limiter);
//! while let Some(page) = pages.next().await {
//!     println!("page {page}"); // one every 100 ms
//! }
//! # Ok(())
//! # }
//! ```

use crate::limiter::{AcquireError, AcquireOwned, Limiter};
use futures_core::Stream;
use futures_core::stream::FusedStream;
use futures_sink::Sink;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Adds [`throttle`](Self::throttle) to all streams.
pub trait ThrottleExt: Stream + Sized {
    /// Passes each item on once it is granted. A unit is taken only when there is an item.
    ///
    /// An item waits in the queue of the limiter, behind all others there. If the stream is dropped, the waiting item
    /// is lost, and takes nothing. If an item is refused, for example because the limiter is closed, the item is lost
    /// and the stream ends; to go on, see [`Throttled::on_refusal`].
    fn throttle(self, limiter: &Limiter) -> Throttled<Self> {
        Throttled { stream: Box::pin(self), limiter: limiter.clone(), waits: None, on_refusal: None, has_ended: false }
    }
}

/// Adds [`throttle_sink`](Self::throttle_sink) to all sinks.
pub trait ThrottleSinkExt<Item>: Sink<Item> + Sized {
    /// Becomes ready for an item once it is granted. A unit is taken for each item, and is not given back if the item
    /// is not sent. If the sink is dropped while it waits, nothing is taken.
    ///
    /// The request for a unit joins the end of the limiter's queue, and only when the sink itself is ready. After
    /// [`SinkError::Refused`] the sink may be polled again.
    fn throttle_sink(self, limiter: &Limiter) -> ThrottledSink<Self> {
        ThrottledSink { sink: Box::pin(self), limiter: limiter.clone(), waits: None, is_granted: false }
    }
}

impl<S: Stream> ThrottleExt for S {}
impl<Item, S: Sink<Item>> ThrottleSinkExt<Item> for S {}

/// A rate-limited stream, see [`ThrottleExt`].
#[must_use = "streams do nothing unless polled"]
pub struct Throttled<S: Stream> {
    stream: Pin<Box<S>>,
    limiter: Limiter,
    /// The next item, and the wait for its grant.
    waits: Option<(S::Item, AcquireOwned)>,
    on_refusal: Option<OnRefusal<S::Item>>,
    has_ended: bool,
}

type OnRefusal<Item> = Box<dyn FnMut(Item, AcquireError) + Send>;

impl<S: Stream> Throttled<S> {
    /// Passes each refused item to `handle`, with the error of [`Limiter::acquire`], and continues with the next item.
    pub fn on_refusal(self, handle: impl FnMut(S::Item, AcquireError) + Send + 'static) -> Self {
        Throttled { on_refusal: Some(Box::new(handle)), ..self }
    }
}

/// A rate-limited sink, see [`ThrottleSinkExt`].
#[must_use = "sinks do nothing unless polled"]
pub struct ThrottledSink<S> {
    sink: Pin<Box<S>>,
    limiter: Limiter,
    waits: Option<AcquireOwned>,
    is_granted: bool,
}

/// Why a [`ThrottledSink`] takes no item.
#[derive(Debug)]
#[non_exhaustive]
pub enum SinkError<E> {
    /// The limiter refuses, as for [`Limiter::acquire`]. Nothing was taken.
    Refused(AcquireError),
    /// The sink fails.
    Sink(E),
}

// Only the stream is pinned, and it has its own box.
impl<S: Stream> Unpin for Throttled<S> {}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        if this.waits.is_none() {
            let next = ready!(this.stream.as_mut().poll_next(context));
            this.waits = next.map(|item| (item, this.limiter.acquire_owned(1)));
        }
        let granted = match &mut this.waits {
            Some((_, acquire)) => ready!(Pin::new(acquire).poll(context)),
            None => Ok(()),
        };
        match (this.waits.take(), granted, &mut this.on_refusal) {
            (Some((item, _)), Ok(()), _) => Poll::Ready(Some(item)),
            (Some((item, _)), Err(error), Some(handle)) => {
                handle(item, error);
                // A closed limiter refuses all items, and the stream may have no end. So other tasks run after each
                // refused item.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => {
                this.has_ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.has_ended {
            return (0, Some(0));
        }
        // Any item may be refused, so the lower bound is 0.
        let (own, (_, most)) = (usize::from(self.waits.is_some()), self.stream.size_hint());
        (0, most.and_then(|most| most.checked_add(own)))
    }
}

impl<S: FusedStream> FusedStream for Throttled<S> {
    fn is_terminated(&self) -> bool {
        self.has_ended || self.waits.is_none() && self.stream.is_terminated()
    }
}

impl<Item, S: Sink<Item>> Sink<Item> for ThrottledSink<S> {
    type Error = SinkError<S::Error>;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = &mut *self;
        ready!(this.sink.as_mut().poll_ready(context)).map_err(SinkError::Sink)?;
        if !this.is_granted {
            let acquire = this.waits.get_or_insert_with(|| this.limiter.acquire_owned(1));
            let granted = ready!(Pin::new(acquire).poll(context));
            this.waits = None;
            granted.map_err(SinkError::Refused)?;
            this.is_granted = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        self.is_granted = false;
        self.sink.as_mut().start_send(item).map_err(SinkError::Sink)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sink.as_mut().poll_flush(context).map_err(SinkError::Sink)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sink.as_mut().poll_close(context).map_err(SinkError::Sink)
    }
}

impl<E: fmt::Display> fmt::Display for SinkError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Refused(error) => error.fmt(f),
            SinkError::Sink(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for SinkError<E> {}

impl<S: Stream> fmt::Debug for Throttled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttled").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for ThrottledSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottledSink").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
