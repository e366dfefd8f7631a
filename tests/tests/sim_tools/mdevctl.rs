//! mdevctl on NVIDIA's GPUs: a T4 with mdev types on the GPU itself, an A40 with
//! them on its VFs.

use std::collections::BTreeMap;

use serde_json::Value;
use uuid::Uuid;
use vgpu_mdev::{
    error::ErrorKind,
    model::{FunctionState, Profile, Vgpu, VgpuState},
};
use vgpu_tests::{simulated::described, watch};

use super::Host;

const T4: &str = "0000:3b:00.0";
const A40: &str = "0000:17:00.0";
/// The first and the last of the A40's 32 VFs.
const FIRST: &str = "0000:17:00.4";
const LAST: &str = "0000:17:04.3";

fn t4() -> Host {
    Host::new(&described("t4"))
}

/// One of the eight: what another GPU does changes nothing here.
fn a40() -> Host {
    let mut spec = described("a40");
    spec.pci.truncate(1);
    Host::new(&spec)
}

/// Each parent with its type and its mdev: the two places for an mdev that
/// mdevctl and the engine have.
fn hosts() -> [(Host, &'static str, &'static str, &'static str); 2] {
    [(t4(), T4, T4, "nvidia-231"), (a40(), A40, LAST, "nvidia-558")]
}

/// A type as `mdevctl types` lists it.
#[derive(Debug, PartialEq, Eq)]
struct Type {
    name: String,
    description: String,
    device_api: String,
    available: u64,
}

impl Host {
    fn mdevctl(&self, args: &[&str]) -> Result<String, String> {
        self.tools.run("mdevctl", args)
    }

    fn start(&self, uuid: Uuid, parent: &str, id: &str) -> Result<String, String> {
        self.mdevctl(&["start", "-u", &uuid.to_string(), "-p", parent, "--type", id])
    }

    fn stop(&self, uuid: Uuid) -> Result<String, String> {
        self.mdevctl(&["stop", "-u", &uuid.to_string()])
    }

    /// `mdevctl types`: each parent with its types.
    fn types(&self) -> BTreeMap<String, BTreeMap<String, Type>> {
        let said = self.mdevctl(&["types", "--dumpjson"]).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let of_parent = |(parent, types): (String, Value)| {
            let types = entries(&types).map(|(id, ty)| {
                let ty = Type {
                    name: text(&ty["name"]),
                    description: text(&ty["description"]),
                    device_api: text(&ty["device_api"]),
                    available: ty["available_instances"].as_u64().unwrap(),
                };
                (id, ty)
            });
            (parent, types.collect())
        };
        entries(&serde_json::from_str(&said).unwrap()).map(of_parent).collect()
    }

    /// `mdevctl list`: UUID, parent and type of each.
    fn list(&self, args: &[&str]) -> Vec<[String; 3]> {
        let said = self.mdevctl(&[&["list", "--dumpjson"], args].concat()).unwrap();
        entries(&serde_json::from_str(&said).unwrap())
            .flat_map(|(parent, mdevs)| {
                let mdevs: Vec<_> = entries(&mdevs).collect();
                mdevs.into_iter().map(move |(uuid, mdev)| {
                    [uuid, parent.clone(), mdev["mdev_type"].as_str().unwrap().to_owned()]
                })
            })
            .collect()
    }

    /// The vGPU once the engine has seen it come to be.
    fn seen(&self, uuid: Uuid) -> Vgpu {
        let is_whole = |vgpu: &Vgpu| vgpu.state == VgpuState::Active && !vgpu.nodes.is_empty();
        let snapshot =
            watch::until(&self.engine, |s| s.vgpu(uuid).is_some_and(|vgpu| is_whole(vgpu)));
        (**snapshot.vgpu(uuid).unwrap()).clone()
    }

    fn gone(&self, uuid: Uuid) {
        watch::until(&self.engine, |snapshot| snapshot.vgpu(uuid).is_none());
    }
}

/// mdevctl's lists of objects with one key each.
fn entries(list: &Value) -> impl Iterator<Item = (String, Value)> {
    let objects = list.as_array().unwrap().clone().into_iter();
    objects.flat_map(|object| object.as_object().unwrap().clone())
}

/// What is written, in order, to make an mdev and to take it away.
fn writes(uuid: Uuid, parent: &str, id: &str) -> [(String, String); 2] {
    let parent = format!("devices/pci0000:00/{parent}");
    [
        (format!("{parent}/mdev_supported_types/{id}/create"), uuid.to_string()),
        (format!("{parent}/{uuid}/remove"), "1".to_owned()),
    ]
}

fn row(uuid: Uuid, parent: &str, id: &str) -> [String; 3] {
    [uuid.to_string(), parent.into(), id.into()]
}

#[test]
fn the_types_of_a_t4_are_its_profiles() {
    let host = t4();
    for started in [None, Some(Uuid::new_v4())] {
        if let Some(uuid) = started {
            host.start(uuid, T4, "nvidia-232").unwrap();
            host.seen(uuid);
        }
        let types = host.types();
        assert_eq!(types.keys().collect::<Vec<_>>(), [T4]);
        assert_eq!(types[T4].len(), 15);
        let ours = host.gpu(T4).profiles.iter().map(as_type).collect();
        assert_eq!(types[T4], ours);
        let left = if started.is_none() { (4, 16) } else { (3, 0) };
        assert_eq!((types[T4]["nvidia-232"].available, types[T4]["nvidia-230"].available), left);
    }
}

fn as_type(profile: &Profile) -> (String, Type) {
    let Profile { id, name, description, device_api, available, .. } = profile.clone();
    (id.to_string(), Type { name, description, device_api, available: available.into() })
}

/// Of a size that is left, each free VF offers one, whatever the GPU has left;
/// the engine counts what the GPU takes.
#[test]
fn the_types_of_an_a40_are_on_its_functions() {
    let host = a40();
    let functions: Vec<_> =
        host.gpu(A40).functions.iter().map(|function| function.address.to_string()).collect();
    assert_eq!((&*functions[0], &*functions[31], functions.len()), (FIRST, LAST, 32));
    let uuid = Uuid::new_v4();
    host.start(uuid, LAST, "nvidia-558").unwrap();
    host.seen(uuid);
    let types = host.types();
    assert_eq!(types.keys().collect::<Vec<_>>(), functions.iter().collect::<Vec<_>>());
    let profiles = &host.gpu(A40).profiles;
    assert_eq!(profiles.len(), 29);
    for (function, types) in &types {
        assert_eq!(types.len(), profiles.len());
        for profile in profiles {
            let (id, ours) = as_type(profile);
            let fits = profile.framebuffer == 2 << 30;
            let available = u64::from(fits && function != LAST);
            assert_eq!(types[&id], Type { available, ..ours }, "{function} {id}");
            let left = if fits { profile.total - 1 } else { 0 };
            assert_eq!(profile.available, left, "{id}");
        }
    }
    assert_eq!(host.profile(A40, "a40-2q").available, 23);
}

#[test]
fn what_mdevctl_starts_is_foreign_until_it_stops_it() {
    for (host, gpu, parent, id) in hosts() {
        let before = host.gpu(gpu);
        let uuid = Uuid::new_v4();
        host.start(uuid, parent, id).unwrap();
        let vgpu = host.seen(uuid);
        assert!(!vgpu.managed);
        assert_eq!((vgpu.gpu.to_string(), &*vgpu.parent), (gpu.to_owned(), parent));
        assert_eq!(vgpu.profile.unwrap().as_str(), id);
        let shown = host.profile(gpu, id);
        assert_eq!(shown.available, shown.total - 1);
        if gpu == A40 {
            let carrier = host.gpu(gpu).functions[31].clone();
            assert_eq!(carrier.address.to_string(), parent);
            assert_eq!((carrier.state, carrier.vgpu), (FunctionState::Vgpu, Some(uuid)));
        }
        let refused = host.remove(uuid).unwrap_err();
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotManaged, "foreign"));
        assert_eq!(host.list(&[]), [row(uuid, parent, id)]);
        host.stop(uuid).unwrap();
        host.gone(uuid);
        assert_eq!(host.writes(), writes(uuid, parent, id));
        assert_eq!(host.list(&[]), Vec::<[String; 3]>::new());
        watch::until(&host.engine, |s| *s.gpu(&gpu.parse().unwrap()).unwrap() == before);
    }
}

#[test]
fn what_mdevctl_keeps_it_starts_again() {
    let host = t4();
    let uuid = Uuid::new_v4();
    let named = ["-u", &uuid.to_string()];
    host.start(uuid, T4, "nvidia-231").unwrap();
    host.mdevctl(&[&["define"][..], &named].concat()).unwrap();
    host.stop(uuid).unwrap();
    host.gone(uuid);
    assert_eq!(host.list(&["--defined"]), [row(uuid, T4, "nvidia-231")]);
    host.mdevctl(&[&["start"][..], &named].concat()).unwrap();
    assert_eq!(host.seen(uuid).profile.unwrap().as_str(), "nvidia-231");
    host.stop(uuid).unwrap();
    host.gone(uuid);
}

/// And both write the same two values to the same two attributes.
#[test]
fn mdevctl_lists_what_we_make_and_takes_it_away() {
    for (host, gpu, _, id) in hosts() {
        let mut expected = Vec::new();
        for by_mdevctl in [false, true] {
            let uuid = host.create(gpu, id).unwrap();
            let vgpu = (**host.engine.snapshot().vgpu(uuid).unwrap()).clone();
            assert!(vgpu.managed);
            assert_eq!(host.list(&[]), [row(uuid, &vgpu.parent, id)]);
            if by_mdevctl {
                host.stop(uuid).unwrap();
                host.gone(uuid);
            } else {
                host.remove(uuid).unwrap();
            }
            assert_eq!(host.list(&[]), Vec::<[String; 3]>::new());
            expected.extend(writes(uuid, &vgpu.parent, id));
        }
        assert_eq!(host.writes(), expected);
    }
}

#[test]
fn both_refuse_what_no_longer_fits() {
    let host = t4();
    let refused = |id: &str| {
        let said = host.start(Uuid::new_v4(), T4, id).unwrap_err();
        assert_eq!(said, format!("Error: No available instances of {id} on {T4}\n"));
        host.create(T4, id).unwrap_err()
    };
    // A full GPU.
    let whole = host.create(T4, "t4-16q").unwrap();
    let error = refused("nvidia-234");
    assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "full"));
    host.remove(whole).unwrap();
    // One that another size locks.
    let locking = Uuid::new_v4();
    host.start(locking, T4, "nvidia-231").unwrap();
    host.seen(locking);
    let error = refused("nvidia-232");
    assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "locked-to-size"));
    assert_eq!(host.list(&[]), [row(locking, T4, "nvidia-231")]);
}

/// The A40's VFs offer a last one of 24 GiB in 31 places.
#[test]
fn both_fill_an_a40() {
    let host = a40();
    let theirs = Uuid::new_v4();
    host.start(theirs, FIRST, "nvidia-565").unwrap();
    host.seen(theirs);
    let ours = host.create(A40, "nvidia-565").unwrap();
    assert_ne!(host.engine.snapshot().vgpu(ours).unwrap().parent, FIRST);
    let said = host.start(Uuid::new_v4(), LAST, "nvidia-565").unwrap_err();
    assert_eq!(said, format!("Error: No available instances of nvidia-565 on {LAST}\n"));
    let error = host.create(A40, "nvidia-565").unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NoCapacity, "full"));
    assert_eq!(host.profile(A40, "a40-1q").reason_code(), "locked-to-size");
}
