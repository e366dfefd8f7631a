//! What each operation asks of the kernel.

use nix::errno::Errno;

use super::{Deadline, Kernel, NodePath, Observed, Op, OpError, Opened, ReadBatch, Reading};

/// Performs an operation; a kernel that hangs keeps the calling thread.
pub(super) fn perform<K: Kernel>(
    kernel: &K,
    op: &Op,
    deadline: Deadline,
) -> Result<Observed, OpError> {
    let refused = |path: String, errno| OpError::Kernel { what: op.to_string(), path, errno };
    match op {
        Op::ReadBatch(batches) => {
            let read = read(kernel, batches);
            read.map(Observed::Read).map_err(|(path, errno)| refused(path, errno))
        }
        Op::WriteAttr { write, unless_held, reads } => {
            if let Some(group) = unless_held {
                refuse_if_held(kernel, group).map_err(|errno| refused(group.to_string(), errno))?;
            }
            kernel
                .write(&write.path, &write.value)
                .map_err(|errno| refused(write.path.to_string(), errno))?;
            Ok(match read(kernel, reads) {
                Ok(readings) if !reads.is_empty() => Observed::Read(readings),
                // What was written stays written: the caller looks again.
                _ => Observed::Done,
            })
        }
        Op::OpenVfio { nodes } => nodes
            .iter()
            .map(|node| kernel.open_node(node).map_err(|errno| refused(node.to_string(), errno)))
            .collect::<Result<_, _>>()
            .map(|fds| Observed::Opened(Opened { fds })),
        Op::Probe(target) => {
            kernel.probe(target, deadline.left()).map(Observed::Probed).map_err(|failure| {
                OpError::Probe {
                    what: op.to_string(),
                    message: failure.message,
                    errno: failure.errno,
                }
            })
        }
        Op::Chown { node, uid } => kernel
            .chown(node, *uid)
            .map(|()| Observed::Done)
            .map_err(|errno| refused(node.to_string(), errno)),
        Op::Holders(query) => kernel
            .holders(query)
            .map(Observed::Holders)
            .map_err(|errno| refused("/proc".into(), errno)),
        Op::RunTool { tool, args } => {
            kernel.run_tool(*tool, args, deadline.left()).map(Observed::Tool).map_err(|errno| {
                OpError::Tool { what: op.to_string(), program: kernel.program(*tool), errno }
            })
        }
    }
}

/// Opens a group and closes it again. One that has no node, or no device behind
/// it, nobody can hold.
fn refuse_if_held<K: Kernel>(kernel: &K, group: &NodePath) -> Result<(), Errno> {
    match kernel.open_node(group) {
        Ok(_) | Err(Errno::ENODEV | Errno::ENOENT | Errno::ENXIO) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads all, or gives the path at which that failed, and why.
fn read<K: Kernel>(kernel: &K, batches: &[ReadBatch]) -> Result<Vec<Reading>, (String, Errno)> {
    let mut readings = Vec::with_capacity(batches.iter().map(|batch| batch.reads.len()).sum());
    for batch in batches {
        for (reading, read) in kernel.read_batch(batch).into_iter().zip(&batch.reads) {
            match reading {
                Err(errno) if tells_nothing(errno) => {
                    return Err((format!("{}/{}", batch.base, read.path), errno));
                }
                reading => readings.push(reading),
            }
        }
    }
    Ok(readings)
}

/// Whether an errno is about this process or the system's memory and says
/// nothing about what was to be read: taken for an absence, it would end the
/// claims of vGPUs that are there.
fn tells_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EINTR)
}
