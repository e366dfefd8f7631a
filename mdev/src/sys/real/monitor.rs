//! Uevents, as udev has processed them: by then the nodes exist and have their
//! permissions.
//!
//! Two filters run in the kernel, so that nothing else wakes us: one by
//! subsystem, and one by the tag `vgpu-host`. An mdev parent may belong to any
//! subsystem, and its `change` event with `MDEV_STATE` is the only sign that it
//! has come or gone; our udev rules tag these (and udev keeps a tag until the
//! device is removed, which is then seen too), and the PCI drivers that are
//! loaded or go:
//!
//! ```text
//! ACTION=="change", ENV{MDEV_STATE}=="?*", TAG+="vgpu-host"
//! SUBSYSTEM=="drivers", DEVPATH=="/bus/pci/drivers/*", TAG+="vgpu-host"
//! ```

use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{setsockopt, sockopt},
    },
};
use udev::{MonitorBuilder, MonitorSocket};

use super::super::KernelEvent;

/// The subsystems of GPUs, their functions, vGPUs and VFIO devices. A group's
/// own events tell nothing that those of its devices do not.
const SUBSYSTEMS: [&str; 3] = ["pci", "mdev", "vfio-dev"];
/// The tag of all else that concerns us.
const TAG: &str = "vgpu-host";
/// Room for the events of some thousand functions at once; the kernel takes it
/// as they come, not beforehand.
const BUFFER: usize = 16 << 20;

/// What the monitor tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorItem {
    /// Something happened.
    Event(KernelEvent),
    /// Events were lost: look at everything again.
    Overrun,
}

/// A running monitor; it ends when this is dropped.
#[derive(Debug)]
pub struct MonitorHandle {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Calls `on_item` with every event from now on, on a thread of its own; it
/// should be quick.
///
/// # Errors
/// When the kernel or udev's library refuses the sockets or the thread.
pub fn monitor(on_item: impl FnMut(MonitorItem) + Send + 'static) -> io::Result<MonitorHandle> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let stop = Arc::new(EventFd::from_flags(flags)?);
    let stopped = stop.clone();
    let (ready, is_ready) = mpsc::sync_channel(1);
    // udev's types stay on the thread that made them.
    let thread = thread::Builder::new().name("vgpu-uevents".into()).spawn(move || {
        let opened = by_subsystem().and_then(|first| Ok([first, by_tag()?]));
        match opened {
            Ok(sockets) => {
                let _ = ready.send(Ok(()));
                if let Err(errno) = listen(&sockets, &stopped, on_item) {
                    tracing::error!("uevents are no longer seen: poll failed: {errno}");
                }
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    })?;
    let handle = MonitorHandle { stop, thread: Some(thread) };
    is_ready.recv().map_err(io::Error::other)??;
    Ok(handle)
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        // Fails only when it has been asked to stop already.
        let _ = self.stop.write(1);
        if let Some(thread) =
            self.thread.take().filter(|t| t.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

fn by_subsystem() -> io::Result<MonitorSocket> {
    let mut builder = MonitorBuilder::new()?;
    for subsystem in SUBSYSTEMS {
        builder = builder.match_subsystem(subsystem)?;
    }
    open(builder)
}

fn by_tag() -> io::Result<MonitorSocket> {
    open(MonitorBuilder::new()?.match_tag(TAG)?)
}

fn open(builder: MonitorBuilder) -> io::Result<MonitorSocket> {
    // Beyond net.core.rmem_max only with CAP_NET_ADMIN.
    setsockopt(&builder, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&builder, sockopt::RcvBuf, &BUFFER))?;
    builder.listen()
}

fn listen(
    sockets: &[MonitorSocket; 2],
    stop: &EventFd,
    mut on_item: impl FnMut(MonitorItem),
) -> Result<(), Errno> {
    loop {
        let [first, second] = sockets;
        let mut fds = [stop.as_fd(), first.as_fd(), second.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let [stopped, first_came, second_came] = fds.map(|fd| fd.any().unwrap_or(false));
        if stopped {
            return Ok(());
        }
        for (socket, came) in [(first, first_came), (second, second_came)] {
            if came {
                drain(socket, &mut on_item);
            }
        }
    }
}

/// Takes all that a socket holds.
fn drain(socket: &MonitorSocket, on_item: &mut impl FnMut(MonitorItem)) {
    loop {
        match socket.iter().next() {
            Some(event) => on_item(MonitorItem::Event(kernel_event(&event))),
            None => match after_nothing(Errno::last()) {
                Next::Again => {}
                Next::Overrun => on_item(MonitorItem::Overrun),
                Next::Wait => return,
            },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Again,
    Overrun,
}

/// What libudev's errno means when it returns no device.
fn after_nothing(errno: Errno) -> Next {
    match errno {
        // The receive buffer was full (`net/netlink/af_netlink.c`,
        // `netlink_overrun`); said once, then the socket goes on.
        Errno::ENOBUFS => Next::Overrun,
        Errno::EINTR => Next::Again,
        // EAGAIN; anything else is a broken message, which is consumed.
        _ => Next::Wait,
    }
}

fn kernel_event(event: &udev::Event) -> KernelEvent {
    let properties = event.properties();
    made_of(
        event.action(),
        event.subsystem(),
        event.devpath(),
        properties.map(|p| (p.name().to_owned(), p.value().to_owned())),
    )
}

fn made_of<S: AsRef<OsStr>>(
    action: Option<&OsStr>,
    subsystem: Option<&OsStr>,
    devpath: &OsStr,
    properties: impl Iterator<Item = (S, S)>,
) -> KernelEvent {
    let text = |text: &OsStr| text.to_string_lossy().into_owned();
    KernelEvent {
        action: action.map(text).unwrap_or_default(),
        subsystem: subsystem.map(text).unwrap_or_default(),
        devpath: text(devpath),
        properties: properties
            .map(|(name, value)| (text(name.as_ref()), text(value.as_ref())))
            .filter(|(name, _)| !matches!(name.as_str(), "ACTION" | "SUBSYSTEM" | "DEVPATH"))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_event_keeps_its_other_variables() {
        let event = made_of(
            Some("change".as_ref()),
            Some("mtty".as_ref()),
            "/devices/virtual/mtty/mtty".as_ref(),
            [
                ("ACTION", "change"),
                ("DEVPATH", "/devices/virtual/mtty/mtty"),
                ("SUBSYSTEM", "mtty"),
                ("MDEV_STATE", "registered"),
                ("SEQNUM", "4711"),
            ]
            .into_iter(),
        );
        assert_eq!(
            event,
            KernelEvent {
                action: "change".into(),
                subsystem: "mtty".into(),
                devpath: "/devices/virtual/mtty/mtty".into(),
                properties: vec![
                    ("MDEV_STATE".into(), "registered".into()),
                    ("SEQNUM".into(), "4711".into()),
                ],
            }
        );
    }

    #[test]
    fn an_event_without_action_or_subsystem_is_still_one() {
        let none = std::iter::empty::<(&str, &str)>();
        let event = made_of(None, None, "/devices/x".as_ref(), none);
        assert_eq!(event, KernelEvent { devpath: "/devices/x".into(), ..KernelEvent::default() });
    }

    #[test]
    fn only_a_full_buffer_is_an_overrun() {
        assert_eq!(after_nothing(Errno::ENOBUFS), Next::Overrun);
        assert_eq!(after_nothing(Errno::EINTR), Next::Again);
        assert_eq!(after_nothing(Errno::EAGAIN), Next::Wait);
        assert_eq!(after_nothing(Errno::EINVAL), Next::Wait);
    }

    #[test]
    fn dropping_the_handle_ends_it() {
        let (alive, ended) = mpsc::channel::<()>();
        let handle = monitor(move |_| alive.send(()).unwrap()).unwrap();
        drop(handle);
        // Its callback, and with it the sender, is gone.
        while ended.recv().is_ok() {}
    }
}
