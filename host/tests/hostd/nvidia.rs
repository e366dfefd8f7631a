//! What NVIDIA's GPUs and vGPUs have beyond others: interfaces that are there only
//! where they apply, and changing what they show.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use futures_util::{FutureExt as _, StreamExt as _};
use vgpu_host_api::error::{self, standard};
use vgpu_mdev::sys::sim::{Calls, FaultOn};
use zbus::{Connection, OwnedObjectPath, OwnedVariant};

use crate::{
    authority::Authority,
    bus::{
        Bus, Failed, GPU, HETEROGENEOUS, MANAGER, MIG, NVIDIA_VGPU, Options, ROOT, VGPU, call,
        create, options, property, remove,
    },
    contract::{contract, introspect},
    daemon::Daemon,
    served::Served,
    signals::{next, watch},
};

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// The GPU of both described hosts.
const CARD: &str = "/org/vgpu/Host1/gpus/pci_0000_41_00_0";

fn host(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../tests/hosts/{name}.toml", env!("CARGO_MANIFEST_DIR")))
}

/// A connection as root, once NVIDIA's program has been asked: at the start that
/// goes on after the service is ready.
async fn asked(bus: &Bus) -> Connection {
    let connection = bus.connect().await;
    call(&connection, ROOT, MANAGER, "Rescan", &()).await.unwrap();
    connection
}

/// The interfaces of ours that introspection shows at a path; each is the one of
/// the contract.
async fn introspected(connection: &Connection, path: &str) -> BTreeSet<String> {
    let (found, _) = introspect(connection, path).await;
    let ours = found.into_iter().filter(|interface| interface.name.starts_with("org.vgpu."));
    ours.map(|interface| {
        assert_eq!(interface, contract(&interface.name), "{path}");
        interface.name
    })
    .collect()
}

/// The same in GetManagedObjects; each has the properties of the contract.
async fn managed(connection: &Connection, path: &str) -> BTreeSet<String> {
    let manager = "org.freedesktop.DBus.ObjectManager";
    let reply = call(connection, ROOT, manager, "GetManagedObjects", &()).await.unwrap();
    let mut objects: HashMap<OwnedObjectPath, HashMap<String, Options>> =
        reply.body().deserialize().unwrap();
    let path = OwnedObjectPath::try_from(path).unwrap();
    let interfaces = objects.remove(&path).unwrap().into_iter();
    interfaces
        .map(|(name, properties)| {
            let types: BTreeMap<_, _> = properties
                .into_iter()
                .map(|(key, held)| (key, held.value_signature().to_string()))
                .collect();
            let wanted = contract(&name).properties.into_iter().map(|(key, p)| (key, p.signature));
            assert_eq!(types, wanted.collect(), "{path} {name}");
            name
        })
        .collect()
}

async fn get_all(connection: &Connection, path: &str, interface: &str) -> Result<Options, Failed> {
    let reply = call(connection, path, PROPERTIES, "GetAll", &(interface,)).await?;
    Ok(reply.body().deserialize().unwrap())
}

async fn configure(connection: &Connection, options: Options) -> Result<(), Failed> {
    let reply = call(connection, CARD, GPU, "Configure", &(options,)).await?;
    let job: OwnedObjectPath = reply.body().deserialize().unwrap();
    assert_eq!(job.as_str(), "/");
    Ok(())
}

async fn plan(connection: &Connection, options: Options) -> Result<Vec<String>, Failed> {
    let reply = call(connection, CARD, GPU, "PlanConfiguration", &(options,)).await?;
    Ok(reply.body().deserialize().unwrap())
}

fn two_instances() -> Options {
    let shapes = vec!["3g.20gb", "3g.20gb"];
    options([("mig", true.into()), ("vfs", 16u32.into()), ("instances", shapes.into())])
}

#[tokio::test]
async fn an_interface_is_absent_where_it_does_not_apply() {
    for (file, path, own, absent) in [
        ("a100", CARD, vec![GPU, MIG, HETEROGENEOUS], vec![]),
        ("l40s", CARD, vec![GPU], vec![MIG, HETEROGENEOUS]),
        ("a2", "/org/vgpu/Host1/gpus/pci_0000_08_00_0", vec![GPU], vec![MIG, HETEROGENEOUS]),
    ] {
        let bus = Bus::start();
        let _daemon = Daemon::of_host(&bus, &host(file));
        let connection = asked(&bus).await;
        let own: BTreeSet<String> = own.into_iter().map(str::to_owned).collect();
        assert_eq!(introspected(&connection, path).await, own, "{file}");
        assert_eq!(managed(&connection, path).await, own, "{file}");
        for name in absent {
            let failed = get_all(&connection, path, name).await.unwrap_err();
            assert_eq!(failed.name, standard::UNKNOWN_INTERFACE, "{file} {name}");
            let of = (name, "Enabled");
            let failed = call(&connection, path, PROPERTIES, "Get", &of).await.unwrap_err();
            assert_eq!(failed.name, standard::UNKNOWN_INTERFACE, "{file} {name}");
        }
    }
}

#[tokio::test]
async fn a_gpu_is_configured_as_planned() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("a100"));
    let connection = asked(&bus).await;
    let before = get_all(&connection, CARD, "").await.unwrap();
    assert_eq!(before["Current"], OwnedVariant::from(false));
    let steps = [
        "run nvidia-smi -i 0000:41:00.0 -mig 1",
        "run sriov-manage -e 0000:41:00.0",
        "run nvidia-smi mig -i 0000:41:00.0 -cgi 3g.20gb,3g.20gb -C",
    ];
    assert_eq!(plan(&connection, two_instances()).await.unwrap(), steps);
    assert_eq!(get_all(&connection, CARD, "").await.unwrap(), before, "planning changed it");

    let mut changes = watch(&connection, "PropertiesChanged").await;
    configure(&connection, two_instances()).await.unwrap();
    let mut told = Options::new();
    while let Some(Some(Ok(message))) = changes.next().now_or_never() {
        let (interface, changed, _): (String, Options, Vec<String>) =
            message.body().deserialize().unwrap();
        if interface == MIG {
            told.extend(changed);
        }
    }
    let now = get_all(&connection, CARD, MIG).await.unwrap();
    assert_eq!(told, now, "each property of it changed, and the last values are these");
    assert_eq!(now["Current"], OwnedVariant::from(true));
    assert_eq!(now["Pending"], OwnedVariant::from(true));
    let instances: Vec<(u32, String)> = now["Instances"].try_clone().unwrap().try_into().unwrap();
    assert_eq!(instances, [(1, "3g.20gb".to_owned()), (2, "3g.20gb".to_owned())]);
    assert_eq!(property::<u32>(&connection, CARD, GPU, "VfCount").await, 16);
    assert!(plan(&connection, two_instances()).await.unwrap().is_empty(), "it is so already");

    create(&connection, "a100-3-20c", Options::new()).await;
    let failed = configure(&connection, options([("mig", false.into())])).await.unwrap_err();
    assert_eq!(failed.name, error::BUSY);
    assert_eq!(failed.detail("Code").as_deref(), Some("would-end-vgpus"));
    assert!(failed.text.contains("changing MIG mode would end the vGPUs"), "{}", failed.text);
}

#[tokio::test]
async fn heterogeneous_mode_is_switched() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("a100"));
    let connection = asked(&bus).await;
    assert!(!property::<bool>(&connection, CARD, HETEROGENEOUS, "Enabled").await);
    let mixed = options([("vfs", 16u32.into()), ("heterogeneous", true.into())]);
    configure(&connection, mixed).await.unwrap();
    assert!(property::<bool>(&connection, CARD, HETEROGENEOUS, "Enabled").await);
    let steps = plan(&connection, options([("heterogeneous", false.into())])).await.unwrap();
    assert_eq!(steps, ["run nvidia-smi vgpu -i 0000:41:00.0 -shm 0"]);
    // In MIG mode there is none, and so no interface of it.
    configure(&connection, options([("mig", true.into())])).await.unwrap();
    let own = BTreeSet::from([GPU.to_owned(), MIG.to_owned()]);
    assert_eq!(introspected(&connection, CARD).await, own);
}

#[tokio::test]
async fn a_gpu_without_modes_sets_its_vfs_alone() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = asked(&bus).await;
    let four = || options([("vfs", 4u32.into())]);
    let steps = plan(&connection, four()).await.unwrap();
    let pf = "/sys/bus/pci/devices/0000:41:00.0";
    assert_eq!(
        steps,
        [
            format!("write \"0\" to {pf}/sriov_drivers_autoprobe"),
            format!("write \"4\" to {pf}/sriov_numvfs"),
            "set driver_override of the VFs of 0000:41:00.0 to vfio-pci".to_owned(),
            format!("write \"1\" to {pf}/sriov_drivers_autoprobe"),
        ]
    );
    configure(&connection, four()).await.unwrap();
    assert_eq!(property::<u32>(&connection, CARD, GPU, "VfCount").await, 4);
    assert!(plan(&connection, four()).await.unwrap().is_empty());
    for (mode, value) in [("mig", true), ("heterogeneous", false)] {
        let failed = configure(&connection, options([(mode, value.into())])).await.unwrap_err();
        assert_eq!(failed.name, error::NOT_SUPPORTED, "{mode}");
        assert!(failed.text.contains("are of NVIDIA's GPUs"), "{}", failed.text);
    }
}

#[tokio::test]
async fn bad_options_are_refused_by_both() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("a100"));
    let connection = asked(&bus).await;
    let before = get_all(&connection, CARD, "").await.unwrap();
    let cases = || {
        let list = |shapes: Vec<&'static str>| options([("instances", shapes.into())]);
        [
            (Options::new(), "needs an option; it takes vfs, mig, instances, heterogeneous"),
            (options([("vf", 1u32.into())]), "has no option \"vf\""),
            (options([("vfs", 5u32.into())]), "all VFs or none, and 5 is neither 0 nor 16"),
            (options([("vfs", "all".into())]), "(u), not of the type s"),
            (options([("mig", 1u32.into())]), "(b), not of the type u"),
            (options([("instances", "3g.20gb".into())]), "(as), not of the type s"),
            (options([("instances", vec![3u32].into())]), "(as), not of the type au"),
            (list(vec!["3g.20gb", "3g.20gb; reboot"]), "3g.20gb; reboot"),
            (list(vec!["1g.5gb"; 65]), "instances has 65 entries, more than 64"),
            (list(vec!["3g.20gb"]), "GPU instances need MIG, which is off"),
        ]
    };
    for (options, words) in cases() {
        let failed = configure(&connection, options).await.unwrap_err();
        assert_eq!(failed.name, standard::INVALID_ARGS, "{words}");
        assert!(failed.text.contains(words), "{} lacks {words:?}", failed.text);
    }
    for (options, words) in cases() {
        let failed = plan(&connection, options).await.unwrap_err();
        assert_eq!(failed.name, standard::INVALID_ARGS, "{words}");
        assert!(failed.text.contains(words), "{} lacks {words:?}", failed.text);
    }
    assert_eq!(get_all(&connection, CARD, "").await.unwrap(), before);
}

#[tokio::test]
async fn an_interface_comes_and_goes_with_what_is_known() {
    let bus = Bus::start();
    let served = Served::of_host(&bus, &host("a100"));
    let connection = asked(&bus).await;
    let mut added = watch(&connection, "InterfacesAdded").await;
    let mut removed = watch(&connection, "InterfacesRemoved").await;

    served.kernel.fail("nvidia-smi *", FaultOn::Run(Calls::All), nix::errno::Errno::ENOENT);
    call(&connection, ROOT, MANAGER, "Rescan", &()).await.unwrap();
    let (path, gone): (OwnedObjectPath, Vec<String>) =
        next(&mut removed).await.body().deserialize().unwrap();
    assert_eq!((path.as_str(), gone), (CARD, vec![MIG.to_owned(), HETEROGENEOUS.to_owned()]));
    let failed = get_all(&connection, CARD, MIG).await.unwrap_err();
    assert_eq!(failed.name, standard::UNKNOWN_INTERFACE);
    assert_eq!(introspected(&connection, CARD).await, BTreeSet::from([GPU.to_owned()]));

    served.kernel.clear_faults();
    call(&connection, ROOT, MANAGER, "Rescan", &()).await.unwrap();
    let (path, mut new): (OwnedObjectPath, HashMap<String, Options>) =
        next(&mut added).await.body().deserialize().unwrap();
    assert_eq!((path.as_str(), new.len()), (CARD, 2));
    assert_eq!(new.remove(MIG), Some(get_all(&connection, CARD, MIG).await.unwrap()));
    assert_eq!(new.remove(HETEROGENEOUS), Some(options([("Enabled", false.into())])));
}

#[tokio::test]
async fn an_nvidia_vgpu_shows_its_place_and_takes_parameters() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("l40s"));
    let connection = asked(&bus).await;
    let vgpu = create(&connection, "l40s-24q", Options::new()).await;
    let own = BTreeSet::from([VGPU.to_owned(), NVIDIA_VGPU.to_owned()]);
    assert_eq!(introspected(&connection, &vgpu).await, own);
    assert_eq!(managed(&connection, &vgpu).await, own);
    let wanted = options([
        ("GpuInstance", (-1i32).into()),
        ("Placement", 0i32.into()),
        ("Params", "".into()),
    ]);
    assert_eq!(get_all(&connection, &vgpu, NVIDIA_VGPU).await.unwrap(), wanted);

    let mut changes = watch(&connection, "PropertiesChanged").await;
    let set = async |params: &str| {
        let reply = call(&connection, &vgpu, NVIDIA_VGPU, "SetParams", &(params,)).await?;
        Ok::<_, Failed>(reply.body().deserialize::<OwnedObjectPath>().unwrap())
    };
    for params in ["frame_rate_limiter=0,disable_vnc=1", ""] {
        assert_eq!(set(params).await.unwrap().as_str(), "/");
        let now: String = property(&connection, &vgpu, NVIDIA_VGPU, "Params").await;
        assert_eq!(now, params);
        let (interface, changed, _): (String, Options, Vec<String>) =
            next(&mut changes).await.body().deserialize().unwrap();
        assert_eq!(
            (interface.as_str(), changed),
            (NVIDIA_VGPU, options([("Params", params.into())]))
        );
    }
    for (params, words) in [
        ("framerate=1", "\"framerate\""),
        ("enable_uvm", "write name=0 or name=1"),
        ("enable_uvm=1,enable_uvm=1", "stands twice"),
    ] {
        let failed = set(params).await.unwrap_err();
        assert_eq!(failed.name, standard::INVALID_ARGS, "{params}");
        assert!(failed.text.contains(words), "{}", failed.text);
    }
    let mut gone = watch(&connection, "InterfacesRemoved").await;
    remove(&connection, &vgpu).await;
    let told: (OwnedObjectPath, Vec<String>) = next(&mut gone).await.body().deserialize().unwrap();
    assert_eq!((told.0.as_str(), told.1.into_iter().collect()), (&*vgpu, own));
}

#[tokio::test]
async fn a_vgpu_in_a_gpu_instance_names_it() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("rtx-pro-6000"));
    let connection = asked(&bus).await;
    let card = "/org/vgpu/Host1/gpus/pci_0000_02_00_0";
    let shapes = vec!["1g.24gb+gfx"; 2];
    let wish = options([("mig", true.into()), ("vfs", 48u32.into()), ("instances", shapes.into())]);
    call(&connection, card, GPU, "Configure", &(wish,)).await.unwrap();
    let instances: Vec<(u32, String)> = property(&connection, card, MIG, "Instances").await;
    let vgpu = create(&connection, "dc-1-24q", Options::new()).await;
    let instance: i32 = property(&connection, &vgpu, NVIDIA_VGPU, "GpuInstance").await;
    let ids: Vec<i32> = instances.iter().map(|(id, _)| i32::try_from(*id).unwrap()).collect();
    assert!(ids.len() == 2 && ids.contains(&instance), "{instance} is none of {instances:?}");
}

#[tokio::test]
async fn vgpus_show_where_in_the_framebuffer_they_lie() {
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("rtx-pro-6000"));
    let connection = asked(&bus).await;
    let card = "/org/vgpu/Host1/gpus/pci_0000_02_00_0";
    let all = (options([("vfs", 48u32.into())]),);
    call(&connection, card, GPU, "Configure", &all).await.unwrap();
    let mut places = BTreeSet::new();
    for _ in 0..2 {
        let vgpu = create(&connection, "dc-48q", Options::new()).await;
        places.insert(property::<i32>(&connection, &vgpu, NVIDIA_VGPU, "Placement").await);
        let instance: i32 = property(&connection, &vgpu, NVIDIA_VGPU, "GpuInstance").await;
        assert_eq!(instance, -1, "MIG is off");
    }
    // A type takes as many places as it has GiB.
    assert_eq!(places, BTreeSet::from([0, 48]));
}

#[tokio::test]
async fn another_vgpu_has_no_parameters() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = asked(&bus).await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    assert_eq!(introspected(&connection, &vgpu).await, BTreeSet::from([VGPU.to_owned()]));
    let failed = call(&connection, &vgpu, NVIDIA_VGPU, "SetParams", &("",)).await.unwrap_err();
    assert_eq!(failed.name, standard::UNKNOWN_INTERFACE);
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_is_for_everyone_and_changing_is_not() {
    let (alice, bob) = (1, 65_534);
    let bus = Bus::start();
    let _daemon = Daemon::of_host(&bus, &host("l40s"));
    let authority = Authority::allowing(&bus, &["create", "remove"]).await;
    let connection = asked(&bus).await;
    let none = [CARD, GPU, "PlanConfiguration", "a{sv}", "1", "vfs", "u", "0"];
    let steps = bus.call_as(alice, &none).unwrap();
    assert_eq!(steps, "as 1 \"run sriov-manage -d 0000:41:00.0\"");
    assert!(authority.actions().is_empty());
    bus.call_as(alice, &[CARD, GPU, "Configure", "a{sv}", "1", "vfs", "u", "0"]).unwrap_err();
    assert_eq!(authority.actions(), ["configure-gpu"]);
    assert_eq!(property::<u32>(&connection, CARD, GPU, "VfCount").await, 32);

    let vgpu = create(&connection, "l40s-24q", options([("owner-uid", alice.into())])).await;
    let set = [&*vgpu, NVIDIA_VGPU, "SetParams", "s", "enable_uvm=1"];
    bus.call_as(bob, &set).unwrap_err();
    assert_eq!(authority.actions(), ["remove", "manage-others"]);
    let params: String = property(&connection, &vgpu, NVIDIA_VGPU, "Params").await;
    assert_eq!(params, "");
    bus.call_as(alice, &set).unwrap();
    assert_eq!(authority.actions(), ["remove"]);
    let params: String = property(&connection, &vgpu, NVIDIA_VGPU, "Params").await;
    assert_eq!(params, "enable_uvm=1");
}
