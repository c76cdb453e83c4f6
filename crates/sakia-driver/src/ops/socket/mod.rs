//! Single operations on sockets: each accepts one connection, or transfers bytes once.

/// Defines the entry and the call of an [`Operation`] with a method `message`, which describes the data to
/// send or the room to fill, with this descriptor and these `MSG_*` flags.
macro_rules! passes_message {
    ($entry:ident, $verb:ident, |$it:ident| $fd:expr, $flags:expr) => {
        fn entry(&mut self) -> Option<sakia_ring::Sqe> {
            let $it = self;
            let message = $it.message();
            Some(sakia_ring::Sqe::$entry($fd.raw(), message, $flags))
        }

        fn call(&mut self) -> crate::call::Call {
            let $it = self;
            let args = [crate::call::word($it.message()), 0];
            crate::call::SocketCall::on(crate::call::Verb::$verb, $fd.raw(), args, $flags)
        }
    };
}

mod accept;
mod bind;
mod connect;
mod control;
mod create;
mod message;
mod name;
mod shutdown;
mod transfer;
mod vectored;

pub use accept::Accept;
pub use bind::{Bind, Listen};
pub use connect::Connect;
pub use control::{ControlMessages, PacketInfo, ReceivedControl};
pub use create::Socket;
pub(crate) use message::{CLOSE_ON_EXEC, CONTROL_TRUNCATED, TRUNCATED};
pub use message::{Received, RecvFrom, RecvMessage, SendMessage, SendTo};
pub use shutdown::Shutdown;
pub use transfer::{SocketRecv, SocketSend};
pub use vectored::{SocketRecvVectored, SocketSendVectored};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::decide::{CallMode, Route};
use crate::handle::{Handle, Op};
use crate::operation::Operation;
pub use crate::sys::ControlMessage;
use crate::sys::{DONT_WAIT, NO_SIGNAL};

/// The `MSG_*` flags of a send with the same meaning on every backend.
pub(crate) const SEND_FLAGS: u32 = DONT_WAIT | SendFlags::MORE.bits() | NO_SIGNAL;

/// The `MSG_*` flags of a receive with the same meaning on every backend.
pub(crate) const RECV_FLAGS: u32 = DONT_WAIT | RecvFlags::PEEK.bits();

/// Returns the route of a send. A plain call does not wait for room: then the queue does.
#[inline(always)]
fn send_route(is_now: bool) -> Route {
    if is_now { Route::Now(CallMode::NonBlocking) } else { Route::Queue }
}

impl Handle {
    /// Starts an operation, or ends it with `EINVAL` if it has `flags` other than `known`.
    fn start_flagged<O: Operation>(&self, operation: O, flags: u32, known: u32) -> Op<O> {
        if flags & !known == 0 {
            return self.start(operation);
        }
        self.refuse(operation, Errno::INVAL)
    }
}
