//! One-shot completions: one side is told once, the other side waits, as a future or by blocking a thread.
//!
//! The engine has no runtime of its own, so its tickets must serve both an async broker and a plain thread. A
//! [`Completion`] that is dropped without a value (its owner failed on the way) ends the wait with [`Abandoned`];
//! nobody waits for ever. Both sides may be used from any thread. The lock is held for memory work only, and the
//! waiter is woken after it is released.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// The other side went away without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operation was abandoned before it had an outcome")]
pub struct Abandoned;

/// The side that is told: completes its [`Ticket`] once.
pub struct Completion<T> {
    shared: Option<Arc<Shared<T>>>,
}

/// The side that waits: a future, or [`Ticket::wait`] for plain threads. Dropping it is allowed at any time.
pub struct Ticket<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    told: Condvar,
}

enum State<T> {
    Waiting(Option<Waker>),
    Told(T),
    Abandoned,
}

/// A connected pair.
pub fn pair<T>() -> (Completion<T>, Ticket<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Waiting(None)), told: Condvar::new() });
    (Completion { shared: Some(Arc::clone(&shared)) }, Ticket { shared })
}

/// A ticket whose value is there already.
pub fn ready<T>(value: T) -> Ticket<T> {
    Ticket { shared: Arc::new(Shared { state: Mutex::new(State::Told(value)), told: Condvar::new() }) }
}

impl<T> Completion<T> {
    /// Hands `value` to the ticket and wakes whoever waits. Never blocks.
    pub fn complete(mut self, value: T) {
        if let Some(shared) = self.shared.take() {
            shared.tell(State::Told(value));
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.tell(State::Abandoned);
        }
    }
}

impl<T> Shared<T> {
    fn tell(&self, outcome: State<T>) {
        let before = std::mem::replace(&mut *self.state.lock(), outcome);
        self.told.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> State<T> {
    /// The outcome, if there is one. A ticket gives its value away once; later askers see it as abandoned.
    fn take(&mut self) -> Option<Result<T, Abandoned>> {
        if matches!(self, Self::Waiting(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Abandoned) {
            Self::Told(value) => Some(Ok(value)),
            Self::Waiting(_) | Self::Abandoned => Some(Err(Abandoned)),
        }
    }
}

impl<T> Ticket<T> {
    /// Blocks until the outcome is known. Not for async code: await the ticket there.
    pub fn wait(self) -> Result<T, Abandoned> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(outcome) = state.take() {
                return outcome;
            }
            self.shared.told.wait(&mut state);
        }
    }

    /// As [`Ticket::wait`], but gives the ticket back if there is no outcome within `limit`.
    pub fn wait_for(self, limit: Duration) -> Result<Result<T, Abandoned>, Self> {
        let deadline = std::time::Instant::now() + limit;
        {
            let mut state = self.shared.state.lock();
            loop {
                if let Some(outcome) = state.take() {
                    return Ok(outcome);
                }
                if self.shared.told.wait_until(&mut state, deadline).timed_out() {
                    match state.take() {
                        Some(outcome) => return Ok(outcome),
                        None => break,
                    }
                }
            }
        }
        Err(self)
    }

    /// True once there is an outcome.
    pub fn is_told(&self) -> bool {
        !matches!(*self.shared.state.lock(), State::Waiting(_))
    }
}

impl<T: Send + 'static> Ticket<T> {
    /// Whether there is an outcome, to be asked again and again by somebody who does not have the ticket.
    pub(crate) fn told(&self) -> Box<dyn Fn() -> bool + Send> {
        let shared = Arc::clone(&self.shared);
        Box::new(move || !matches!(*shared.state.lock(), State::Waiting(_)))
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.lock();
        if let Some(outcome) = state.take() {
            return Poll::Ready(outcome);
        }
        if let State::Waiting(slot) = &mut *state {
            match slot {
                Some(waker) if waker.will_wake(context.waker()) => {}
                _ => *slot = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("told", &self.is_told()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread;

    use super::*;

    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_thread_waits_until_it_is_told() {
        let (completion, ticket) = pair();
        let waiter = thread::spawn(move || ticket.wait());
        thread::sleep(Duration::from_millis(20));
        completion.complete(7);
        assert_eq!(waiter.join().unwrap(), Ok(7));
    }

    #[test]
    fn a_value_that_came_first_is_kept() {
        let (completion, ticket) = pair();
        completion.complete("early");
        assert!(ticket.is_told());
        assert_eq!(ticket.wait(), Ok("early"));
        assert_eq!(ready(3).wait(), Ok(3));
    }

    #[test]
    fn dropping_the_completion_ends_the_wait() {
        let (completion, ticket) = pair::<()>();
        let waiter = thread::spawn(move || ticket.wait());
        drop(completion);
        assert_eq!(waiter.join().unwrap(), Err(Abandoned));
    }

    #[test]
    fn a_bounded_wait_gives_the_ticket_back() {
        let (completion, ticket) = pair();
        let ticket = ticket.wait_for(Duration::from_millis(5)).unwrap_err();
        completion.complete(1);
        assert_eq!(ticket.wait_for(Duration::from_secs(5)).unwrap(), Ok(1));
    }

    #[test]
    fn polling_registers_the_last_waker_and_wakes_it_once() {
        let (completion, mut ticket) = pair();
        let first = Arc::new(Counter(AtomicUsize::new(0)));
        let second = Arc::new(Counter(AtomicUsize::new(0)));
        for counter in [&first, &second, &second] {
            let waker = Waker::from(Arc::clone(counter));
            assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        completion.complete(9);
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        let waker = Waker::from(second);
        assert_eq!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(9)));
        // Polled again after the end: an outcome, not a hang or a panic.
        assert_eq!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)), Poll::Ready(Err(Abandoned)));
    }
}
