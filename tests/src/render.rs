//! A snapshot as text, to be read and compared.

use std::fmt::Write;

use vgpu_mdev::model::{Gpu, NodeKind, Snapshot, Vgpu};

/// All that a snapshot tells, less its revision and inodes: these differ each
/// time.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for gpu in snapshot.gpus() {
        render_gpu(&mut text, gpu).expect("text takes everything");
        for vgpu in snapshot.vgpus_of(&gpu.id) {
            render_vgpu(&mut text, vgpu).expect("text takes everything");
        }
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no GPUs\n");
    }
    text.truncate(text.trim_end().len());
    text
}

fn render_gpu(text: &mut String, gpu: &Gpu) -> std::fmt::Result {
    write!(text, "GPU {}: {} {}", gpu.id, gpu.vendor, gpu.model)?;
    if let Some((vendor, device)) = gpu.pci_ids {
        write!(text, " [{vendor:04x}:{device:04x}]")?;
    }
    writeln!(text, ", {}, {}", gpu.framework, gpu.state.as_str())?;
    writeln!(
        text,
        "  driver {}, NUMA node {}, IOMMU group {}, VFs {} of {}",
        or_none(gpu.driver.as_ref()),
        or_none(gpu.numa_node),
        or_none(gpu.iommu_group),
        gpu.vf_count,
        gpu.vf_total
    )?;
    for problem in &gpu.problems {
        writeln!(text, "  problem {problem}")?;
    }
    for profile in &gpu.profiles {
        write!(
            text,
            "  profile {} = {} ({:?}, {}, {}), {} MiB: {} of {}",
            profile.id,
            profile.short_name,
            profile.name,
            profile.framework,
            profile.device_api,
            profile.framebuffer >> 20,
            profile.available,
            profile.total
        )?;
        match &profile.reason {
            Some(reason) => writeln!(text, ", {}: {}", reason.code, reason.text)?,
            None => writeln!(text)?,
        }
    }
    for function in &gpu.functions {
        write!(
            text,
            "  function {}: {}, driver {}",
            function.address,
            function.state.as_str(),
            or_none(function.driver.as_ref())
        )?;
        match function.vgpu {
            Some(uuid) => writeln!(text, ", vGPU {uuid}")?,
            None => writeln!(text)?,
        }
    }
    Ok(())
}

fn render_vgpu(text: &mut String, vgpu: &Vgpu) -> std::fmt::Result {
    write!(
        text,
        "  vGPU {}: {} on {}, {}, {}, {}",
        vgpu.uuid,
        or_none(vgpu.profile.as_ref()),
        vgpu.parent,
        vgpu.framework,
        vgpu.state.as_str(),
        if vgpu.managed { format!("of uid {}", vgpu.owner_uid) } else { "foreign".into() },
    )?;
    if let Some(name) = &vgpu.name {
        write!(text, ", named {name}")?;
    }
    write!(text, ", group {}", or_none(vgpu.iommu_group))?;
    for node in &vgpu.nodes {
        let kind = match node.kind {
            NodeKind::Group => "group",
            NodeKind::Cdev => "cdev",
        };
        write!(text, ", {kind} node {}", node.path)?;
    }
    if !vgpu.addresses.is_empty() {
        write!(text, ", functions {:?}", vgpu.addresses)?;
    }
    writeln!(text)
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}
