//! The described hosts with NVIDIA's GPUs that are empty after a boot: what the
//! engine sees of them as NVIDIA's own programs configure them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use vgpu_mdev::{
    model::{Framework, Gpu, VgpuState},
    sys::{Kernel as _, ToolId},
};
use vgpu_tests::simulated::Simulated;

struct Host {
    simulated: Simulated,
    gpu: &'static str,
}

impl Host {
    fn described(name: &str, gpu: &'static str) -> Self {
        let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let simulated = Simulated::described(&std::fs::read_to_string(path).unwrap(), "");
        Self { simulated, gpu }
    }

    /// Runs one of NVIDIA's programs, as somebody else; it must succeed.
    fn run(&self, tool: ToolId, line: &str) {
        let args: Vec<String> = line.split(' ').map(Into::into).collect();
        let said = self.simulated.kernel.run_tool(tool, &args, Duration::from_secs(5)).unwrap();
        assert_eq!(said.status, Some(0), "{tool} {line}: {}", said.output);
        self.simulated.engine.rescan().unwrap();
    }

    fn gpu(&self) -> Gpu {
        (**self.simulated.engine.snapshot().gpu(&self.gpu.parse().unwrap()).unwrap()).clone()
    }

    fn available(&self, profile: &str) -> u32 {
        self.gpu().profiles_called(profile).next().unwrap().available
    }
}

#[test]
fn an_a100_becomes_mdev_parents_and_takes_sizes_one_at_a_time() {
    let host = Host::described("a100", "0000:41:00.0");
    assert!(host.gpu().functions.is_empty());
    host.run(ToolId::SriovManage, "-e 0000:41:00.0");
    let gpu = host.gpu();
    assert_eq!((gpu.framework, gpu.functions.len()), (Framework::Mdev, 16));
    assert_eq!((host.available("a100-4c"), host.available("a100-3-20c")), (10, 0));
    let uuid = host.simulated.create("a100-20c").unwrap();
    assert_eq!(host.simulated.vgpu(uuid).unwrap().state, VgpuState::Active);
    assert_eq!((host.available("a100-20c"), host.available("a100-4c")), (1, 0));
    host.simulated.remove(uuid).unwrap();
    assert_eq!(host.available("a100-4c"), 10);
}

#[test]
fn an_a100_in_mig_mode_offers_what_its_instances_back() {
    let host = Host::described("a100", "0000:41:00.0");
    host.run(ToolId::NvidiaSmi, "-i 0000:41:00.0 -mig 1");
    host.run(ToolId::SriovManage, "-e 0000:41:00.0");
    assert_eq!((host.available("a100-4c"), host.available("a100-3-20c")), (0, 0));
    host.run(ToolId::NvidiaSmi, "mig -i 0000:41:00.0 -cgi 9,9 -C");
    assert_eq!((host.available("a100-4c"), host.available("a100-3-20c")), (0, 2));
    let made = [(); 2].map(|()| host.simulated.create("a100-3-20c").unwrap());
    assert_eq!(host.available("a100-3-20c"), 0);
    assert!(host.simulated.create("a100-3-20c").is_err());
    made.iter().for_each(|uuid| host.simulated.remove(*uuid).unwrap());
    assert_eq!(host.available("a100-3-20c"), 2);
}

#[test]
fn an_rtx_pro_6000_divides_its_instances_by_time() {
    let host = Host::described("rtx-pro-6000", "0000:02:00.0");
    host.run(ToolId::NvidiaSmi, "-i 0000:02:00.0 -mig 1");
    host.run(ToolId::SriovManage, "-e 0000:02:00.0");
    let gpu = host.gpu();
    assert_eq!((gpu.framework, gpu.functions.len()), (Framework::NvidiaVf, 48));
    host.run(ToolId::NvidiaSmi, "mig -i 0000:02:00.0 -cgi 47,47,47,47 -C");
    assert_eq!((host.available("dc-1-2q"), host.available("dc-1-24q")), (48, 4));
    let whole = host.simulated.create("dc-1-24q").unwrap();
    let small = host.simulated.create("dc-1-2q").unwrap();
    assert_eq!((host.available("dc-1-2q"), host.available("dc-1-24q")), (35, 2));
    host.simulated.remove(whole).unwrap();
    host.simulated.remove(small).unwrap();
    assert_eq!((host.available("dc-1-2q"), host.available("dc-1-24q")), (48, 4));
}
