//! Every host that is described in `tests/hosts`: its picture at boot, and each
//! profile of each model created until none is left, with the reasons, and
//! removed again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, fmt::Write, fs};

use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{Gpu, GpuId},
    request::{Configure, Control, CreateRequest},
    sys::sim::HostSpec,
};
use vgpu_tests::{conformance::Picture, render::render, simulated::Simulated};

/// What is made of a host before its profiles are tried once more.
type Stage = (&'static str, fn() -> Vec<(&'static str, Configure)>);

fn functions(count: u32) -> Configure {
    Configure { functions: Some(count), ..Configure::default() }
}

fn mig(functions: u32, shapes: &[&str]) -> Configure {
    Configure {
        functions: Some(functions),
        mig: Some(true),
        instances: Some(shapes.iter().map(|shape| shape.parse().unwrap()).collect()),
        heterogeneous: None,
    }
}

fn stages(host: &str) -> &'static [Stage] {
    const A100: &str = "0000:41:00.0";
    const RTX: &str = "0000:02:00.0";
    const MI300X: &str = "0000:0c:00.0";
    match host {
        "mi300x" => &[("a VF for each accelerator", || vec![(MI300X, functions(8))])],
        "a100" => &[
            ("VFs enabled", || vec![(A100, functions(16))]),
            ("MIG with 3g.20gb, 2g.10gb, 1g.5gb", || {
                vec![(A100, mig(16, &["3g.20gb", "2g.10gb", "1g.5gb"]))]
            }),
        ],
        "arc-pro-b60" => &[("3 VFs", || vec![("0000:03:00.0", functions(3))])],
        "flex170" => &[("3 VFs", || vec![("0000:4d:00.0", functions(3))])],
        "mixed" => &[("VFs enabled", || {
            vec![("0000:4d:00.0", functions(3)), ("0000:83:00.0", functions(3))]
        })],
        "rtx-pro-6000" => &[
            ("VFs enabled", || vec![(RTX, functions(48))]),
            ("sizes side by side", || {
                vec![(RTX, Configure { heterogeneous: Some(true), ..functions(48) })]
            }),
            ("MIG with 1g.24gb+gfx, 1g.24gb+gfx, 2g.48gb+gfx", || {
                let shapes = ["1g.24gb+gfx", "1g.24gb+gfx", "2g.48gb+gfx"];
                vec![(RTX, mig(48, &shapes))]
            }),
        ],
        _ => &[],
    }
}

fn gpu(host: &Simulated, id: &GpuId) -> Gpu {
    (**host.engine.snapshot().gpu(id).unwrap()).clone()
}

/// Creates a profile on a GPU until none is left, and removes all; says how many
/// that were and why no more.
fn until_full(host: &Simulated, id: &GpuId, profile: &str) -> String {
    let before = host.picture();
    let mut made: Vec<Uuid> = Vec::new();
    let refused = loop {
        let request = CreateRequest {
            profile: profile.into(),
            gpu: Some(id.clone()),
            uuid: Some(Uuid::from_u128((0x600d << 112) | (made.len() as u128 + 1))),
            ..CreateRequest::default()
        };
        match host.engine.create(&request, &Control::default()) {
            Ok(created) => made.push(created.uuid),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoCapacity, "{profile}: {refused}");
    let full = gpu(host, id);
    let mut codes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut own = String::new();
    for other in &full.profiles {
        if other.short_name == profile {
            let reason = other.reason.as_ref().unwrap();
            assert_eq!(refused.code(), reason.code.as_str(), "{refused}");
            own = format!("{}: {}", reason.code, reason.text);
        } else {
            *codes.entry(other.reason_code()).or_default() += 1;
        }
    }
    let codes: Vec<String> = codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let line = format!(
        "    {profile}: {}, then {own}\n      the others: {}\n",
        made.len(),
        codes.join(", ")
    );
    made.into_iter().rev().for_each(|uuid| host.remove(uuid).unwrap());
    assert_eq!(host.picture(), before, "{profile}");
    line
}

/// Each profile of one GPU of each model.
fn all_until_full(host: &Simulated, text: &mut String) {
    let before = Picture::of(&host.kernel);
    let mut seen = Vec::new();
    let gpus: Vec<Gpu> = host.engine.snapshot().gpus().map(|gpu| (**gpu).clone()).collect();
    for gpu in gpus {
        if seen.contains(&(gpu.model.clone(), gpu.framework)) {
            continue;
        }
        seen.push((gpu.model.clone(), gpu.framework));
        writeln!(text, "  {} {}", gpu.model, gpu.id).unwrap();
        for profile in &gpu.profiles {
            text.push_str(&until_full(host, &gpu.id, &profile.short_name));
        }
    }
    assert_eq!(before.difference(&Picture::of(&host.kernel)), [""; 0], "something is left");
}

fn story(name: &str) -> String {
    let path = format!("{}/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let spec = HostSpec::parse(&fs::read_to_string(&path).unwrap(), path).unwrap();
    let host = Simulated::on(&spec, "");
    // What NVIDIA's program says comes by itself a little later.
    host.engine.rescan().unwrap();
    let mut text = format!("{}\n\nUntil none is left\n", render(&host.engine.snapshot()));
    all_until_full(&host, &mut text);
    for (title, changes) in stages(name) {
        for (id, wish) in changes() {
            host.engine.configure(&id.parse().unwrap(), &wish, &Control::default()).unwrap();
        }
        writeln!(text, "\n{title}").unwrap();
        all_until_full(&host, &mut text);
    }
    text
}

macro_rules! hosts {
    ($($test:ident = $name:literal),+ $(,)?) => {
        const HOSTS: &[&str] = &[$($name),+];
        $(
            #[test]
            fn $test() {
                insta::with_settings!({ omit_expression => true }, {
                    insta::assert_snapshot!($name, story($name));
                });
            }
        )+
    };
}

hosts! {
    a100 = "a100",
    a2 = "a2",
    a40 = "a40",
    arc_pro_b60 = "arc-pro-b60",
    flex170 = "flex170",
    gvtg = "gvtg",
    l40s = "l40s",
    lab = "lab",
    mi300x = "mi300x",
    mixed = "mixed",
    rtx_pro_6000 = "rtx-pro-6000",
    t4 = "t4",
}

#[test]
fn no_host_is_left_out() {
    let folder = format!("{}/hosts", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            Some(entry.unwrap().file_name().to_str()?.strip_suffix(".toml")?.to_owned())
        })
        .collect();
    names.sort();
    assert_eq!(names, HOSTS);
}
