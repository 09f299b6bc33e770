//! Sending a range of a file to a socket without a copy.

use std::io;
use std::os::fd::BorrowedFd;

use crate::File;

/// Sends up to `length` bytes of `file` from `offset` to a non-blocking socket; the number of bytes sent, 0 at
/// the end of the file.
///
/// `None` if the file has no descriptor: read it instead. `WouldBlock` if the socket takes no more now. Waits
/// for the volume if the range is not in memory, so a caller on a runtime thread asks
/// [`File::read_at_nowait`] first.
pub fn send_file(
    socket: BorrowedFd<'_>,
    file: &dyn File,
    offset: u64,
    length: usize,
) -> Option<io::Result<usize>> {
    let descriptor = file.descriptor()?;
    let mut position = offset;
    Some(rustix::fs::sendfile(socket, descriptor, Some(&mut position), length).map_err(io::Error::from))
}
