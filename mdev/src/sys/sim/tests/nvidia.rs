//! NVIDIA's GPUs: what their tests share.

use super::*;
use crate::sys::{ToolId, ToolOutput};

pub(super) const GPU: &str = "0000:41:00.0";

/// An A100 with 16 VFs and mdev on them.
pub(super) fn a100(more: &str) -> SimKernel {
    described("mig = \"a100-40gb\"\nheterogeneous = true", more, "mdev = \"k\"", "A100")
}

/// An L40S with 32 VFs, vendor-specific VFIO and heterogeneous mode.
pub(super) fn l40s(more: &str) -> SimKernel {
    described("generation = \"ada\"\nheterogeneous = true", more, "vendor = \"k\"", "L40S")
}

/// A Blackwell with several vGPUs in an instance.
pub(super) fn blackwell(more: &str) -> SimKernel {
    let nvidia = "generation = \"blackwell\"\nmig = \"rtx-pro-6000\"\nheterogeneous = true\n\
                  vgpus-per-instance = 12";
    described(nvidia, more, "vendor = \"k\"", "RTX PRO 6000")
}

fn described(nvidia: &str, more: &str, carries: &str, catalog: &str) -> SimKernel {
    host(&text(nvidia, more, carries, catalog))
}

pub(super) fn text(nvidia: &str, more: &str, carries: &str, catalog: &str) -> String {
    format!(
        "[vfio]\ngroups = true\ncdevs = true\n\
         [[pci]]\naddress = \"{GPU}\"\nvendor = 0x10de\ndevice = 0x20f1\nclass = 0x030200\n\
         driver = \"nvidia\"\n\
         [pci.sriov]\ntotal-vfs = 16\noffset = 4\nvf-device = 0x20f1\nvf-driver = \"nvidia\"\n\
         {carries}\n\
         [pci.nvidia]\nproduct = \"NVIDIA Some\"\n{nvidia}\n{more}\n\
         [mdev-kind.k]\ndriver = \"nvidia-vgpu-vfio\"\ncatalog = \"{catalog}\"\n"
    )
}

/// The directory of a VF.
pub(super) fn vf(index: usize) -> String {
    let devfn = index + 4;
    format!("bus/pci/devices/0000:41:{:02x}.{}", devfn / 8, devfn % 8)
}

impl SimKernel {
    /// What a program answers: its status and its text.
    pub(super) fn tool(&self, tool: ToolId, line: &str) -> (i32, String) {
        let args: Vec<String> =
            line.split(' ').filter(|arg| !arg.is_empty()).map(Into::into).collect();
        let ToolOutput { status, output } = self.run_tool(tool, &args, SOON).unwrap();
        (status.unwrap(), output)
    }

    pub(super) fn smi(&self, line: &str) -> (i32, String) {
        self.tool(ToolId::NvidiaSmi, line)
    }

    pub(super) fn sriov_manage(&self, line: &str) -> (i32, String) {
        self.tool(ToolId::SriovManage, line)
    }

    /// Runs a program that must succeed.
    pub(super) fn done(&self, tool: ToolId, line: &str) -> String {
        let (status, text) = self.tool(tool, line);
        assert_eq!(status, 0, "{tool} {line}: {text}");
        text
    }

    pub(super) fn enable_vfs(&self) {
        self.done(ToolId::SriovManage, &format!("-e {GPU}"));
    }

    /// The text of an element of `nvidia-smi -q -x`.
    pub(super) fn element(&self, name: &str) -> String {
        let xml = self.done(ToolId::NvidiaSmi, &format!("-q -x -i {GPU}"));
        let (_, rest) = xml.split_once(&format!("<{name}>")).unwrap();
        rest.split_once("</").unwrap().0.to_owned()
    }

    /// The VFs that there are.
    pub(super) fn vf_names(&self) -> Vec<String> {
        self.list(PF).into_iter().filter(|name| name.starts_with("virtfn")).collect()
    }

    /// Puts a type on a VF of vendor-specific VFIO.
    pub(super) fn carry(&self, index: usize, number: u32) -> Result<(), Errno> {
        self.put(&format!("{}/nvidia/current_vgpu_type", vf(index)), &number.to_string())
    }

    pub(super) fn vendor(&self, index: usize, attr: &str) -> String {
        self.text(&format!("{}/nvidia/{attr}", vf(index))).unwrap().trim_end().to_owned()
    }

    /// The names that a VF could carry, by their last part.
    pub(super) fn creatable(&self, index: usize) -> Vec<String> {
        let list = self.vendor(index, "creatable_vgpu_types");
        let name = |row: &str| row.rsplit_once(['-', ' ']).unwrap().1.to_owned();
        list.lines().skip(1).map(name).collect()
    }
}
