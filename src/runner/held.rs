//! Values that stay on a device between calls.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use anyhow::Result;

/// A device's own array.
pub trait OnDevice: Any + Send + Sync {
    /// Its values, row-major, as exact images.
    ///
    /// # Errors
    /// The device does not give them.
    fn read(&self) -> Result<Vec<f32>>;

    /// For the runner that made it.
    fn as_any(&self) -> &dyn Any;
}

/// An array that a runner keeps where its device reads it. Clones share it; its values are read once, if ever.
#[derive(Clone)]
pub struct Held {
    array: Arc<dyn OnDevice>,
    floats: Arc<OnceLock<Vec<f32>>>,
}

impl Held {
    /// Wraps a device's array, whose values must not change while this or a clone of it lives.
    pub fn new(array: Arc<dyn OnDevice>) -> Self {
        Self { array, floats: Arc::default() }
    }

    /// The values, read from the device by the first call.
    ///
    /// # Errors
    /// The device does not give them.
    pub fn floats(&self) -> Result<&[f32]> {
        if let Some(floats) = self.floats.get() {
            return Ok(floats);
        }
        let read = self.array.read()?;
        Ok(self.floats.get_or_init(|| read))
    }

    /// The device's array, if `T` is what it is.
    pub fn downcast<T: Any>(&self) -> Option<&T> {
        self.array.as_any().downcast_ref()
    }
}

/// Equal where the values are; arrays that cannot be read equal themselves only.
impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.array, &other.array)
            || self.floats().ok().zip(other.floats().ok()).is_some_and(|(left, right)| left == right)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.floats() {
            Ok(floats) => f.debug_tuple("Held").field(&floats).finish(),
            Err(error) => f.debug_tuple("Held").field(&error.to_string()).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(Vec<f32>, AtomicUsize);

    impl OnDevice for Counted {
        fn read(&self) -> Result<Vec<f32>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(self.0.clone())
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn values_are_read_by_the_first_who_asks_and_clones_share_them() {
        let held = Held::new(Arc::new(Counted(vec![1.0, 2.0], AtomicUsize::new(0))));
        let reads = |held: &Held| held.downcast::<Counted>().unwrap().1.load(Ordering::Relaxed);
        let clone = held.clone();
        assert_eq!((reads(&held), clone == held), (0, true));
        assert_eq!(
            (clone.floats().unwrap(), held.floats().unwrap(), reads(&held)),
            (&[1.0, 2.0][..], &[1.0, 2.0][..], 1)
        );
        let equal = Held::new(Arc::new(Counted(vec![1.0, 2.0], AtomicUsize::new(0))));
        let other = Held::new(Arc::new(Counted(vec![1.0, 3.0], AtomicUsize::new(0))));
        assert!(held == equal && held != other);
        assert!(held.downcast::<u8>().is_none());
    }
}
