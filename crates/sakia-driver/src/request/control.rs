//! Control messages with the descriptors of file handles.

use super::FileHandle;
use crate::ops::ControlMessages;

impl ControlMessages<FileHandle> {
    /// Returns an empty list of messages, for a [request](crate::Request::SendMessage).
    ///
    /// # Examples
    /// See [`Request::SendMessage`](crate::Request::SendMessage).
    pub fn of_request() -> Self {
        Self::default()
    }

    /// Adds the descriptor of a file, as [`descriptor`](ControlMessages::descriptor) does.
    ///
    /// # Examples
    /// See [`Request::SendMessage`](crate::Request::SendMessage).
    #[doc(alias = "SCM_RIGHTS")]
    pub fn file(self, file: &FileHandle) -> Self {
        self.with_descriptor(file.clone())
    }
}
