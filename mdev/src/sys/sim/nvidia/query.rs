//! `nvidia-smi -q -x`: the log as XML, of its elements those that tell of vGPUs
//! and MIG.

use super::{
    super::state::{Role, State},
    Answer,
    smi::Gpu,
};

pub(super) fn run(state: &State, gpus: &[Gpu]) -> Answer {
    let mut xml = Xml::default();
    xml.text.push_str("<?xml version=\"1.0\" ?>\n");
    xml.text.push_str("<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n");
    xml.open("nvidia_smi_log");
    xml.leaf("driver_version", "580.65.05");
    xml.leaf("cuda_version", "Not Found");
    xml.within("vgpu_driver_capability", |xml| {
        xml.leaf("heterogenous_multivGPU", "Supported");
    });
    let attached = state.nvidia.keys().filter(|gpu| state.is_on_nvidia(**gpu)).count();
    xml.leaf("attached_gpus", attached);
    for gpu in gpus {
        self::gpu(&mut xml, state, *gpu);
    }
    xml.close("nvidia_smi_log");
    Answer { text: xml.text, status: 0 }
}

fn gpu(xml: &mut Xml, state: &State, gpu: Gpu) {
    let Some(nvidia) = state.nvidia.get(&gpu.address) else { return };
    let has_sriov =
        state.pci.get(&gpu.address).is_some_and(|device| matches!(device.role, Role::Pf(_)));
    let supported = |is: bool| if is { "Supported" } else { "Not Supported" };
    let has_mig = nvidia.spec.mig.is_some();
    xml.open(&format!("gpu id=\"{}\"", gpu.id()));
    xml.leaf("product_name", &nvidia.spec.product);
    xml.leaf("product_brand", "NVIDIA");
    xml.within("vgpu_device_capability", |xml| {
        xml.leaf("fractional_multiVgpu", "Supported");
        xml.leaf("heterogeneous_timeSlice_profile", "Supported");
        xml.leaf("heterogeneous_timeSlice_sizes", supported(nvidia.spec.heterogeneous));
    });
    xml.within("mig_mode", |xml| {
        xml.leaf("current_mig", mode(has_mig.then_some(nvidia.mig)));
        xml.leaf("pending_mig", mode(has_mig.then_some(nvidia.pending)));
    });
    let devices: Vec<u32> =
        nvidia.instances.iter().filter(|(_, gi)| gi.compute).map(|(id, _)| *id).collect();
    xml.within("mig_devices", |xml| {
        if devices.is_empty() {
            xml.indented("None");
        }
        for (index, instance) in devices.iter().enumerate() {
            xml.within("mig_device", |xml| {
                xml.leaf("index", index);
                xml.leaf("gpu_instance_id", instance);
                xml.leaf("compute_instance_id", 0);
            });
        }
    });
    let can_mix = nvidia.spec.heterogeneous && !nvidia.mig;
    xml.within("gpu_virtualization_mode", |xml| {
        xml.leaf("virtualization_mode", "Host VGPU");
        xml.leaf("host_vgpu_mode", if has_sriov { "SR-IOV" } else { "Non SR-IOV" });
        xml.leaf("vgpu_heterogeneous_mode", mode(can_mix.then_some(nvidia.mixed)));
    });
    xml.close("gpu");
}

fn mode(on: Option<bool>) -> &'static str {
    match on {
        Some(true) => "Enabled",
        Some(false) => "Disabled",
        None => "N/A",
    }
}

/// XML, indented by tabs as the program does.
#[derive(Default)]
struct Xml {
    text: String,
    depth: usize,
}

impl Xml {
    fn indented(&mut self, text: &str) {
        self.text.push_str(&format!("{}{text}\n", "\t".repeat(self.depth)));
    }

    fn open(&mut self, element: &str) {
        self.indented(&format!("<{element}>"));
        self.depth += 1;
    }

    fn close(&mut self, name: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.indented(&format!("</{name}>"));
    }

    fn within(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.open(name);
        fill(self);
        self.close(name);
    }

    fn leaf(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string().replace('&', "&amp;").replace('<', "&lt;");
        self.indented(&format!("<{name}>{value}</{name}>"));
    }
}
