//! Waiting for completion handlers, which Core ML calls on a queue of its own.

use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use block2::RcBlock;
use objc2::Message;
use objc2::rc::Retained;
use objc2_foundation::NSError;

use super::{Failure, failed};

/// What a handler is given: a result or an error.
type Handler<T> = RcBlock<dyn Fn(*mut T, *mut NSError)>;

/// An object on its way from Core ML's queue to the waiting thread.
struct Handed<T>(Retained<T>);

// SAFETY: Core ML itself hands the object from its queue to the handler's caller; the sender keeps no reference.
unsafe impl<T> Send for Handed<T> {}

/// The other end of a completion handler.
pub(super) struct Completion<T>(Receiver<Result<Handed<T>>>);

impl<T: Message + 'static> Completion<T> {
    /// A handler, and what waits for it. `call` names what is waited for, as a verb.
    pub(super) fn new(call: &'static str) -> (Self, Handler<T>) {
        let (sender, receiver) = channel();
        let handler = RcBlock::new(move |object: *mut T, error: *mut NSError| {
            // SAFETY: both are objects that live during the call, or nil.
            let (object, error) = unsafe { (Retained::retain(object), error.as_ref()) };
            let result = match (object, error) {
                (Some(object), _) => Ok(Handed(object)),
                (None, Some(error)) => Err(failed(call, error)),
                (None, None) => {
                    let text = "neither a result nor an error came back".to_owned();
                    Err(Failure { call, domain: "anebake".to_owned(), code: None, text }.into())
                }
            };
            // Nobody waits any more where the receiver is gone.
            drop(sender.send(result));
        });
        (Self(receiver), handler)
    }

    /// Waits for the handler's call.
    pub(super) fn wait(self) -> Result<Retained<T>> {
        let handed = self.0.recv().context("Core ML dropped the completion handler without calling it")??;
        Ok(handed.0)
    }
}
