//! Plans of many vGPUs, held against what creating them in turn comes to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use vgpu_mdev::{
    placement::Policy,
    request::{Control, CreateRequest, PlanRequest, Planned},
    sys::{Kernel as _, ToolId, sim::HostSpec},
};
use vgpu_tests::simulated::{Simulated, described};

const RTX: &str = "0000:02:00.0";

fn run(host: &Simulated, tool: ToolId, line: &str) {
    let args: Vec<String> = line.split(' ').map(Into::into).collect();
    let said = host.kernel.run_tool(tool, &args, Duration::from_secs(5)).unwrap();
    assert_eq!(said.status, Some(0), "{line}: {}", said.output);
}

/// An A40 on vendor-specific VFIO with sizes side by side.
fn mixed_a40() -> Simulated {
    let spec = "[vfio]\ngroups = true\n[[vfio-driver]]\nname = 'vfio-pci'\n\
        [mdev-kind.a40]\ndriver = 'nvidia'\ncatalog = 'A40'\n\
        [[pci]]\naddress = '0000:02:00.0'\nvendor = 0x10de\ndevice = 0x2235\n\
        subsystem-vendor = 0x10de\nsubsystem-device = 0x145a\nclass = 0x030200\ndriver = 'nvidia'\n\
        [pci.nvidia]\nproduct = 'NVIDIA A40'\ngeneration = 'ampere'\nheterogeneous = true\n\
        [pci.sriov]\ntotal-vfs = 32\noffset = 4\nvf-device = 0x2235\nvf-driver = 'nvidia'\n\
        vendor = 'a40'\n";
    let host = Simulated::on(&HostSpec::parse(spec, "host.toml").unwrap(), "");
    run(&host, ToolId::SriovManage, &format!("-e {RTX}"));
    run(&host, ToolId::NvidiaSmi, &format!("vgpu -i {RTX} -shm 1"));
    host.engine.rescan().unwrap();
    host
}

fn plan(host: &Simulated, wishes: &[(&str, u32)]) -> Planned {
    let wishes = wishes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    host.engine.plan_vgpus(&PlanRequest { wishes, ..PlanRequest::default() }).unwrap()
}

/// Makes what was planned, in its order.
fn carry_out(host: &Simulated, planned: &Planned) {
    for choice in &planned.choices {
        assert!(!choice.steps.is_empty(), "{choice:?}");
        let request = CreateRequest {
            profile: choice.profile.clone(),
            gpu: Some(choice.gpu.clone()),
            ..CreateRequest::default()
        };
        host.engine.create(&request, &Control::default()).unwrap();
    }
    let snapshot = host.engine.snapshot();
    for (gpu, name, _, then) in &planned.remaining {
        let gpu = snapshot.gpu(gpu).unwrap();
        let now = gpu.profiles_called(name).next().unwrap().available;
        assert_eq!(now, *then, "{name} of {}", gpu.id);
    }
}

#[test]
fn sizes_side_by_side_are_made_in_the_order_in_which_they_fit() {
    // The large ones lie at 0 and 32, the small ones at 16 and 24: made first, a
    // small one would take 0.
    let host = mixed_a40();
    let planned = plan(&host, &[("a40-8q", 2), ("a40-16q", 2)]);
    let order: Vec<&str> = planned.choices.iter().map(|c| c.profile.as_str()).collect();
    assert_eq!(order, ["a40-16q", "a40-16q", "a40-8q", "a40-8q"]);
    carry_out(&host, &planned);
}

#[test]
fn a_plan_of_the_most_vgpus_comes_soon() {
    let one = std::fs::read_to_string(format!("{}/hosts/l40s.toml", env!("CARGO_MANIFEST_DIR")));
    let one = one.unwrap();
    let (head, gpu) = one.split_at(one.find("[[pci]]").unwrap());
    let (gpu, kind) = gpu.split_at(gpu.find("[mdev-kind").unwrap());
    let mut text = head.to_owned();
    for n in 0..16 {
        text += &gpu.replace("0000:41:00.0", &format!("0000:{:02x}:00.0", 0x41 + n));
    }
    text += kind;
    let host = Simulated::described(&text, "");
    for policy in [Policy::Pack, Policy::Spread] {
        for wishes in [
            vec![("l40s-1q", 512)],
            vec![
                ("l40s-1q", 200),
                ("l40s-2q", 90),
                ("l40s-4q", 24),
                ("l40s-8q", 12),
                ("l40s-48q", 1),
            ],
            // More than there is.
            vec![("l40s-1q", 1024)],
            vec![("l40s-3q", 300), ("l40s-4q", 300), ("l40s-6q", 224), ("l40s-48q", 200)],
            vec![
                ("l40s-1q", 300),
                ("l40s-2q", 90),
                ("l40s-4q", 24),
                ("l40s-8q", 12),
                ("l40s-48q", 3),
            ],
        ] {
            let begun = Instant::now();
            let named = wishes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            let request =
                PlanRequest { wishes: named, placement: Some(policy), ..PlanRequest::default() };
            let ask = || host.engine.plan_vgpus(&request).map_err(|error| error.to_string());
            // As small a stack as any thread has that may call it.
            let planned = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(2 << 20);
                thread.spawn_scoped(scope, ask).unwrap().join().unwrap()
            });
            let total: u32 = wishes.iter().map(|(_, count)| count).sum();
            match planned {
                Ok(planned) => assert_eq!(planned.choices.len(), total as usize),
                Err(told) => assert!(told.contains("would fit together"), "{told}"),
            }
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(60), "{policy} {wishes:?} took {took:?}");
        }
    }
}

#[test]
fn a_plan_for_mig_backed_vgpus_comes_to_be() {
    let host = Simulated::on(&described("rtx-pro-6000"), "");
    run(&host, ToolId::NvidiaSmi, &format!("-i {RTX} -mig 1"));
    run(&host, ToolId::SriovManage, &format!("-e {RTX}"));
    run(&host, ToolId::NvidiaSmi, &format!("mig -i {RTX} -cgi 47,47,47,47 -C"));
    host.engine.rescan().unwrap();
    let planned = plan(&host, &[("dc-1-2q", 13), ("dc-1-24q", 2)]);
    carry_out(&host, &planned);
}
