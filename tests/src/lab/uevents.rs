//! The kernel's own uevents, before udev has them: in the kernel's order.

use std::{
    os::fd::{AsFd, AsRawFd as _},
    sync::Arc,
    thread::{self, JoinHandle},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv,
            setsockopt, socket, sockopt,
        },
    },
};
use vgpu_mdev::sys::KernelEvent;

/// The multicast group of the kernel itself; udev's is 2.
const KERNEL: u32 = 1;

/// Listens until it is dropped.
pub(super) struct Uevents {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Uevents {
    /// Calls `listener` with every event from now on.
    pub(super) fn listen(listener: impl Fn(&KernelEvent) + Send + 'static) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol).unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).unwrap();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL)).unwrap();
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap());
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut message = [0; 8192];
            loop {
                let mut fds =
                    [stopped.as_fd(), socket.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
                poll(&mut fds, PollTimeout::NONE).unwrap();
                if fds[0].any().unwrap() {
                    return;
                }
                let length = recv(socket.as_raw_fd(), &mut message, MsgFlags::empty()).unwrap();
                listener(&parse(&message[..length]));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Uevents {
    fn drop(&mut self) {
        self.stop.write(1).unwrap();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `action@devpath`, then variables, each ended by a NUL
/// (`lib/kobject_uevent.c`).
fn parse(message: &[u8]) -> KernelEvent {
    let text = String::from_utf8_lossy(message);
    let mut event = KernelEvent::default();
    for (key, value) in text.split('\0').filter_map(|variable| variable.split_once('=')) {
        match key {
            "ACTION" => event.action = value.into(),
            "SUBSYSTEM" => event.subsystem = value.into(),
            "DEVPATH" => event.devpath = value.into(),
            _ => event.properties.push((key.into(), value.into())),
        }
    }
    event
}
