//! The locks and atomics that a partition's threads meet at, named in one place.
//!
//! With the feature `loom` they are those of the model checker loom, which runs a test again and again with every order
//! of their operations (`tests/loom.rs`). They work within such a test only.

#[cfg(not(feature = "loom"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(feature = "loom")]
pub(crate) use under_loom::{Condvar, Mutex, MutexGuard, RwLock};

/// loom's locks with the calls of parking_lot's. loom poisons nothing: a panic ends the whole test.
#[cfg(feature = "loom")]
mod under_loom {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Instant;

    use loom::sync;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// Empty only while its condition variable waits.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    /// Time does not pass in a model, so nothing times out.
    pub(crate) struct NotTimedOut;

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    #[allow(clippy::panic)]
    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().unwrap_or_else(|| panic!("used while it waits"))
        }
    }

    #[allow(clippy::panic)]
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().unwrap_or_else(|| panic!("used while it waits"))
        }
    }

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
            }
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> NotTimedOut {
            self.wait(guard);
            NotTimedOut
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl NotTimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }
}
