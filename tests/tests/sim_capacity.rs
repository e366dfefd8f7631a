//! What the engine says is available, held against what the simulated kernel takes,
//! in states that come by chance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use nix::errno::Errno;
use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{Framework, FunctionState, Gpu, Profile},
    request::{Control, CreateRequest},
    sys::{
        Kernel as _, ReadKind, ToolId,
        sim::{Calls, FaultOn},
    },
};
use vgpu_tests::simulated::{Simulated, described};

/// Numbers that only look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }
}

fn gpus(host: &Simulated) -> Vec<Gpu> {
    host.engine.snapshot().gpus().map(|gpu| (**gpu).clone()).collect()
}

/// Makes one past the engine; what undoes it.
fn make_raw(host: &Simulated, gpu: &Gpu, profile: &Profile) -> Option<(String, String)> {
    match profile.framework {
        Framework::Mdev => {
            let own = gpu.id.to_string();
            let names = gpu.functions.iter().map(|f| f.address.to_string()).chain([own]);
            for parent in names {
                let uuid = Uuid::new_v4();
                let path =
                    format!("class/mdev_bus/{parent}/mdev_supported_types/{}/create", profile.id);
                if host.write(&path, &uuid.to_string()).is_ok() {
                    return Some((format!("class/mdev_bus/{parent}/{uuid}/remove"), "1".into()));
                }
            }
            None
        }
        Framework::NvidiaVf => {
            let number = profile.id.as_str().strip_prefix("nvidia-").unwrap();
            for f in &gpu.functions {
                let path = format!("bus/pci/devices/{}/nvidia/current_vgpu_type", f.address);
                let idle = host.kernel.read(&path, ReadKind::Text)
                    == Ok(vgpu_mdev::sys::Value::Text("0\n".into()));
                if idle && host.write(&path, number).is_ok() {
                    return Some((path, "0".into()));
                }
            }
            None
        }
        Framework::Sriov | Framework::Passthrough => None,
    }
}

fn check(host: &Simulated, note: &str) {
    for gpu in gpus(host) {
        for profile in &gpu.profiles {
            if matches!(profile.framework, Framework::Sriov | Framework::Passthrough) {
                let free = gpu.functions.iter().filter(|f| f.state == FunctionState::Free).count();
                if profile.framework == Framework::Sriov && profile.available > 0 {
                    assert_eq!(profile.available as usize, free, "{note}: {}", profile.short_name);
                }
                continue;
            }
            // As many as are said to be available, and no more.
            let mut made = Vec::new();
            while made.len() <= 64 {
                let Some(undo) = make_raw(host, &gpu, profile) else { break };
                made.push(undo);
            }
            let taken = made.len() as u32;
            for (path, value) in made.iter().rev() {
                host.write(path, value).unwrap();
            }
            // With mdev nobody says where in the framebuffer each lies.
            let is_guess = profile.framework == Framework::Mdev && gpu.heterogeneous == Some(true);
            let is_so = match is_guess {
                true => (profile.available > 0) == (taken > 0),
                false => profile.available == taken,
            };
            assert!(
                is_so,
                "{note}: {} and not {taken} {} of GPU {} ({:?}), rule {:?}",
                profile.available,
                profile.short_name,
                gpu.id,
                profile.reason,
                gpu.room.rule()
            );
            assert_eq!(profile.available == 0, profile.reason.is_some());
        }
    }
    host.engine.rescan().unwrap();
}

fn wander(host: &Simulated, seed: u64, steps: usize, note: &str) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut ours: Vec<Uuid> = Vec::new();
    let mut foreign: Vec<(String, String)> = Vec::new();
    check(host, note);
    for step in 0..steps {
        let note = format!("{note}, seed {seed}, step {step}");
        let all = gpus(host);
        let gpu = &all[dice.roll(all.len())];
        match dice.roll(10) {
            0..=4 => {
                let offered: Vec<&Profile> =
                    gpu.profiles.iter().filter(|p| p.framework != Framework::Passthrough).collect();
                if offered.is_empty() {
                    continue;
                }
                // Mostly what is there to be had.
                let there: Vec<&&Profile> = offered.iter().filter(|p| p.available > 0).collect();
                let profile = match there.is_empty() || dice.roll(4) == 0 {
                    true => offered[dice.roll(offered.len())],
                    false => there[dice.roll(there.len())],
                };
                let request = CreateRequest {
                    profile: profile.id.to_string(),
                    gpu: Some(gpu.id.clone()),
                    ..CreateRequest::default()
                };
                let mut after = gpu.room.clone();
                let place = after.position(&profile.id).unwrap();
                let fits = after.take(place);
                match host.engine.create(&request, &Control::default()) {
                    Ok(created) => {
                        assert!(profile.available > 0, "{note}: made {}", profile.short_name);
                        ours.push(created.uuid);
                        let now = &gpus(host).into_iter().find(|g| g.id == gpu.id).unwrap();
                        for then in &now.profiles {
                            let foreseen = after.available(after.position(&then.id).unwrap());
                            assert!(
                                foreseen == then.available
                                    || (gpu.heterogeneous == Some(true)
                                        && profile.framework == Framework::Mdev),
                                "{note}: after one {} {} {} were foreseen and {} are there; {:?}",
                                profile.short_name,
                                foreseen,
                                then.short_name,
                                then.available,
                                gpu.room.rule()
                            );
                        }
                    }
                    Err(error) => {
                        assert_eq!(profile.available, 0, "{note}");
                        assert!(!fits, "{note}: {} refused: {error}", profile.short_name);
                        assert_eq!(error.kind(), ErrorKind::NoCapacity, "{note}: {error}");
                        assert_eq!(error.code(), profile.reason_code(), "{note}: {error}");
                    }
                }
            }
            5 => {
                let there: Vec<&Profile> =
                    gpu.profiles.iter().filter(|p| p.available > 0).collect();
                if !there.is_empty() {
                    foreign.extend(make_raw(host, gpu, there[dice.roll(there.len())]));
                    host.engine.rescan().unwrap();
                }
            }
            6..=8 if !ours.is_empty() => {
                host.remove(ours.swap_remove(dice.roll(ours.len()))).unwrap();
            }
            9 if !foreign.is_empty() => {
                let (path, value) = foreign.swap_remove(dice.roll(foreign.len()));
                host.write(&path, &value).unwrap();
                host.engine.rescan().unwrap();
            }
            _ => continue,
        }
        check(host, &note);
    }
}

fn run(host: &Simulated, tool: ToolId, line: &str) {
    let args: Vec<String> = line.split(' ').map(Into::into).collect();
    let said = host.kernel.run_tool(tool, &args, Duration::from_secs(5)).unwrap();
    assert_eq!(said.status, Some(0), "{line}: {}", said.output);
}

fn seeds() -> std::ops::Range<u64> {
    let n = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    0..n
}

#[test]
fn what_is_available_is_what_the_kernel_takes() {
    for name in ["t4", "a2", "l40s", "gvtg", "lab", "mixed", "mi300x", "flex170"] {
        for seed in seeds() {
            wander(&Simulated::on(&described(name), ""), seed, 24, name);
        }
    }
}

#[test]
fn and_on_an_a100_in_each_of_its_modes() {
    for instances in
        [None, Some("19,19,9"), Some("9,9"), Some("14,14,14,19"), Some("20,5,19,19"), Some("0")]
    {
        for seed in seeds() {
            let host = Simulated::on(&described("a100"), "");
            if instances.is_some() {
                run(&host, ToolId::NvidiaSmi, "-i 0000:41:00.0 -mig 1");
            }
            run(&host, ToolId::SriovManage, "-e 0000:41:00.0");
            if let Some(ids) = instances {
                run(&host, ToolId::NvidiaSmi, &format!("mig -i 0000:41:00.0 -cgi {ids} -C"));
            }
            host.engine.rescan().unwrap();
            wander(&host, seed, 24, &format!("{instances:?}"));
        }
    }
}

#[test]
fn and_with_sizes_side_by_side() {
    for (name, gpu) in [("a100", "0000:41:00.0"), ("rtx-pro-6000", "0000:02:00.0")] {
        for seed in seeds() {
            let host = Simulated::on(&described(name), "");
            run(&host, ToolId::SriovManage, &format!("-e {gpu}"));
            run(&host, ToolId::NvidiaSmi, &format!("vgpu -i {gpu} -shm 1"));
            host.engine.rescan().unwrap();
            wander(&host, seed, 30, name);
        }
    }
}

#[test]
fn and_on_an_rtx_pro_6000_in_each_of_its_modes() {
    for ids in [None, Some("47,21,35"), Some("47,47,47,47")] {
        for seed in seeds() {
            let host = Simulated::on(&described("rtx-pro-6000"), "");
            let mode = u8::from(ids.is_some());
            run(&host, ToolId::NvidiaSmi, &format!("-i 0000:02:00.0 -mig {mode}"));
            run(&host, ToolId::SriovManage, "-e 0000:02:00.0");
            if let Some(ids) = ids {
                run(&host, ToolId::NvidiaSmi, &format!("mig -i 0000:02:00.0 -cgi {ids} -C"));
            }
            host.engine.rescan().unwrap();
            wander(&host, seed, 16, &format!("{ids:?}"));
        }
    }
}

/// What the driver lists is offered, and what it does not is not, also where
/// nobody tells how the GPU is divided.
#[test]
fn without_nvidia_smi_what_is_listed_is_offered() {
    for (name, gpu, ids) in [
        ("a100", "0000:41:00.0", None),
        ("a100", "0000:41:00.0", Some("9,14,19")),
        ("a100", "0000:41:00.0", Some("5,20,19,19")),
        ("rtx-pro-6000", "0000:02:00.0", Some("47,47,47,47")),
    ] {
        for seed in seeds() {
            let host = Simulated::on(&described(name), "");
            run(&host, ToolId::NvidiaSmi, &format!("-i {gpu} -mig {}", u8::from(ids.is_some())));
            run(&host, ToolId::SriovManage, &format!("-e {gpu}"));
            if let Some(ids) = ids {
                run(&host, ToolId::NvidiaSmi, &format!("mig -i {gpu} -cgi {ids} -C"));
            }
            host.kernel.fail("nvidia-smi*", FaultOn::Run(Calls::All), Errno::ENOENT);
            host.engine.rescan().unwrap();
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut ours: Vec<Uuid> = Vec::new();
            for step in 0..40 {
                let note = format!("{name} {ids:?}, seed {seed}, step {step}");
                let gpu = gpus(&host).remove(0);
                let profile = &gpu.profiles[dice.roll(gpu.profiles.len())];
                let raw = make_raw(&host, &gpu, profile);
                if let Some((path, value)) = &raw {
                    host.write(path, value).unwrap();
                }
                let is_said = profile.available > 0;
                assert_eq!(is_said, raw.is_some(), "{note}: {profile:?} {:?}", gpu.room.rule());
                host.engine.rescan().unwrap();
                if is_said && dice.roll(3) > 0 {
                    ours.push(host.create(profile.id.as_str()).unwrap());
                } else if !ours.is_empty() && dice.roll(2) == 0 {
                    host.remove(ours.swap_remove(dice.roll(ours.len()))).unwrap();
                }
            }
        }
    }
}

#[test]
fn vfs_that_others_took_change_nothing_of_how_the_framebuffer_is_divided() {
    let host = Simulated::on(&described("rtx-pro-6000"), "");
    run(&host, ToolId::SriovManage, "-e 0000:02:00.0");
    run(&host, ToolId::NvidiaSmi, "vgpu -i 0000:02:00.0 -shm 1");
    let all = gpus(&host).remove(0).functions;
    for function in all.iter().skip(20) {
        let address = function.address;
        let device = format!("bus/pci/devices/{address}");
        host.write(&format!("{device}/driver_override"), "vfio-pci").unwrap();
        host.write("bus/pci/drivers/nvidia/unbind", &address.to_string()).unwrap();
        host.write("bus/pci/drivers_probe", &address.to_string()).unwrap();
    }
    host.engine.rescan().unwrap();
    wander(&host, 1, 12, "20 VFs are left");
}

#[test]
fn a_driver_may_say_any_number() {
    let spec = "[[virtual-parent]]\nname = 'odd'\nmdev = 'odd'\n\
        [[pci]]\naddress = '0000:01:00.0'\nvendor = 0x8086\ndevice = 0x10c9\nclass = 0x030000\n\
        driver = 'igb'\n[pci.sriov]\ntotal-vfs = 2\nvf-device = 0x10ca\nvf-driver = 'igbvf'\n\
        enabled = 2\nmdev = 'odd'\n\
        [mdev-kind.odd]\ndriver = 'odd'\nunits = 4294967295\n\
        types = [\n\
        { id = 'odd-1', size = 1, description = 'max_instance=1' },\n\
        { id = 'odd-2', size = 1 },\n\
        { id = 'odd-3', size = 4294967295, description = 'framebuffer=18446744073709551615M' },\n\
        { id = 'odd-4', size = 1, description = 'max_instance=0' } ]\n";
    let host = Simulated::described(spec, "");
    for gpu in gpus(&host) {
        let available: Vec<u32> = gpu.profiles.iter().map(|profile| profile.available).collect();
        // Where it says how many there are at most, it is held to that.
        let expected = [1, u32::MAX, if gpu.functions.is_empty() { 1 } else { 2 }, u32::MAX];
        assert_eq!(available, expected, "{}", gpu.id);
    }
}
