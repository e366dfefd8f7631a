//! What NVIDIA's `nvidia-smi` says of a GPU that no attribute of the kernel does:
//! MIG mode, GPU instances, heterogeneous mode. The parsers touch nothing.

use std::{collections::BTreeMap, fmt, str::FromStr};

use quick_xml::{Reader, events::Event};

use crate::{model::PciAddress, room::Shape};

/// What `nvidia-smi` says of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SmiFacts {
    /// MIG mode, `None` on a GPU without MIG.
    pub mig: Option<Mig>,
    /// Whether vGPUs of several sizes may lie side by side, `None` on a GPU that
    /// never allows it.
    pub heterogeneous: Option<bool>,
    /// The GPU instances, ascending by their numbers.
    pub instances: Vec<GpuInstance>,
}

/// MIG mode: a change can wait for the GPU's next reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mig {
    /// What it is.
    pub current: bool,
    /// What it will be.
    pub pending: bool,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its number on the GPU.
    pub id: u32,
    /// Its shape.
    pub shape: Shape,
    /// Its profile's number.
    pub profile: u32,
}

/// A kind of GPU instance that a GPU can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProfile {
    /// Its number, as `-cgi` takes it.
    pub id: u32,
    /// Its shape.
    pub shape: Shape,
    /// How many can still be made.
    pub free: u32,
    /// How many an empty GPU takes.
    pub total: u32,
}

/// The output of `nvidia-smi -q -x`, by GPU; `None` when it is no such output.
pub fn query(xml: &str) -> Option<BTreeMap<PciAddress, SmiFacts>> {
    let mut reader = Reader::from_str(xml);
    let mut found = BTreeMap::new();
    let mut gpu: Option<(PciAddress, SmiFacts)> = None;
    let mut path: Vec<String> = Vec::new();
    let mut is_log = false;
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) => {
                let name = element.name().as_ref().to_owned();
                is_log |= name == "nvidia_smi_log";
                if name == "gpu" && path.len() == 1 {
                    let id = element.try_get_attribute("id").ok()??;
                    gpu = address(&id.value).map(|id| (id, SmiFacts::default()));
                }
                path.push(name);
            }
            Event::End(_) => {
                path.pop();
                if path.len() == 1 {
                    found.extend(gpu.take());
                }
            }
            Event::Text(text) => {
                if let Some((_, facts)) = &mut gpu {
                    note(facts, &path, text.trim());
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    is_log.then_some(found)
}

fn note(facts: &mut SmiFacts, path: &[String], text: &str) {
    let on = match text {
        "Enabled" => true,
        "Disabled" => false,
        _ => return,
    };
    match path.last().map(String::as_str) {
        Some("current_mig") => {
            let pending = facts.mig.map_or(on, |mig| mig.pending);
            facts.mig = Some(Mig { current: on, pending });
        }
        Some("pending_mig") => {
            let current = facts.mig.map_or(on, |mig| mig.current);
            facts.mig = Some(Mig { current, pending: on });
        }
        Some("vgpu_heterogeneous_mode") => facts.heterogeneous = Some(on),
        _ => {}
    }
}

/// An address as `nvidia-smi` writes it: a domain of eight digits, upper case.
pub fn address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let digits = domain.trim_start_matches('0');
    format!("{digits:0>4}:{rest}").to_lowercase().parse().ok()
}

/// The table of `nvidia-smi mig -lgi`; lines that are no instance are passed
/// over.
pub fn instances(table: &str) -> Vec<GpuInstance> {
    rows(table)
        .filter_map(|(shape, numbers)| {
            let mut numbers = numbers.into_iter();
            let profile = numbers.next()?.parse().ok()?;
            let id = numbers.next()?.parse().ok()?;
            Some(GpuInstance { id, shape, profile })
        })
        .collect()
}

/// The table of `nvidia-smi mig -lgip`.
pub fn instance_profiles(table: &str) -> Vec<InstanceProfile> {
    rows(table)
        .filter_map(|(shape, numbers)| {
            let mut numbers = numbers.into_iter();
            let id = numbers.next()?.parse().ok()?;
            let (free, total) = numbers.next()?.split_once('/')?;
            Some(InstanceProfile {
                id,
                shape,
                free: free.parse().ok()?,
                total: total.parse().ok()?,
            })
        })
        .collect()
}

/// The rows `|   0  MIG 1g.5gb   19 … |` of a table: shape, and the words after.
fn rows(table: &str) -> impl Iterator<Item = (Shape, Vec<&str>)> {
    table.lines().filter_map(|line| {
        let mut words = line.split(['|', ' ', '\t']).filter(|word| !word.is_empty());
        words.find(|word| *word == "MIG")?;
        let shape = words.next()?.parse().ok()?;
        Some((shape, words.collect()))
    })
}

/// A text that is no shape of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no GPU instance: write for example 3g.20gb, 1g.5gb+me")]
pub struct InvalidShape(String);

impl FromStr for Shape {
    type Err = InvalidShape;

    fn from_str(text: &str) -> Result<Self, InvalidShape> {
        let parse = || {
            let (slices, memory) = text.split_once("g.")?;
            let (gib, rest) = memory.split_once("gb")?;
            // What it lacks keeps its sign.
            let extra = rest.strip_prefix('+').unwrap_or(rest);
            let word = rest.strip_prefix(['+', '-']).unwrap_or_default();
            let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                digits.then(|| text.parse().ok()).flatten().filter(|n| (1..=4096).contains(n))
            };
            let well = rest.is_empty() || (plain(word) && (1..=16).contains(&word.len()));
            let shape = Self { slices: number(slices)?, gib: number(gib)?, extra: extra.into() };
            well.then_some(shape)
        };
        parse().ok_or_else(|| InvalidShape(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}g.{}gb", self.slices, self.gib)?;
        match self.extra.as_str() {
            "" => Ok(()),
            lacks if lacks.starts_with('-') => f.write_str(lacks),
            extra => write!(f, "+{extra}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Tue Mar  4 10:11:12 2025</timestamp>
	<attached_gpus>2</attached_gpus>
	<gpu id="00000000:41:00.0">
		<product_name>NVIDIA A100-PCIE-40GB</product_name>
		<mig_mode>
			<current_mig>Disabled</current_mig>
			<pending_mig>Enabled</pending_mig>
		</mig_mode>
		<gpu_virtualization_mode>
			<virtualization_mode>Host VGPU</virtualization_mode>
			<host_vgpu_mode>SR-IOV</host_vgpu_mode>
			<vgpu_heterogeneous_mode>Disabled</vgpu_heterogeneous_mode>
		</gpu_virtualization_mode>
	</gpu>
	<gpu id="0001A000:C1:00.0">
		<mig_mode>
			<current_mig>N/A</current_mig>
			<pending_mig>N/A</pending_mig>
		</mig_mode>
	</gpu>
</nvidia_smi_log>
"#;

    #[test]
    fn a_query_tells_modes_by_address() {
        let found = query(LOG).unwrap();
        let first = &found[&"0000:41:00.0".parse().unwrap()];
        assert_eq!(first.mig, Some(Mig { current: false, pending: true }));
        assert_eq!(first.heterogeneous, Some(false));
        let second = &found[&"1a000:c1:00.0".parse().unwrap()];
        assert_eq!(*second, SmiFacts::default());
        assert_eq!(query("NVIDIA-SMI has failed because it couldn't communicate"), None);
        assert_eq!(query("<nvidia_smi_log><gpu"), None);
        assert_eq!(query("<other></other>"), None);
    }

    #[test]
    fn hostile_text_costs_no_time() {
        use std::{
            fmt::Write as _,
            time::{Duration, Instant},
        };

        let begun = Instant::now();
        let mut attributes = String::from("<nvidia_smi_log><gpu ");
        (0..60_000).for_each(|n| write!(attributes, "a{n}='' ").unwrap());
        attributes += "id='00000000:41:00.0'><x>1</x></gpu></nvidia_smi_log>";
        assert_eq!(query(&attributes).unwrap().len(), 1);
        let deep = format!(
            "<nvidia_smi_log>{}{}",
            "<gpu id='0:1:0.0'>".repeat(60_000),
            "x".repeat(60_000)
        );
        let _ = query(&deep);
        let entities = format!("<nvidia_smi_log>{}</nvidia_smi_log>", "&lt;&a;&#0;".repeat(60_000));
        let _ = query(&entities);
        let wide = format!("| MIG 1g.5gb {}", "9 ".repeat(500_000));
        assert_eq!(instances(&wide).len(), 1);
        assert_eq!(instances(&"MIG ".repeat(500_000)), []);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn tables_of_instances_and_their_profiles() {
        let lgi = "\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb+me       20        9          6:1     |
|   0  MIG 3g.20gb          9        2          0:4     |
+-------------------------------------------------------+
";
        let found = instances(lgi);
        let seen: Vec<_> = found.iter().map(|i| (i.id, i.shape.to_string(), i.profile)).collect();
        assert_eq!(seen, [(9, "1g.5gb+me".into(), 20), (2, "3g.20gb".into(), 9)]);
        assert_eq!(instances("No GPU instances found: Not Found\n"), []);
        let lgip = "\
|   0  MIG 1g.5gb        19     6/7        4.75       No     14     0     0   |
|                                                             1     0     0   |
|   0  MIG 3g.20gb        9     1/2        19.62      No     42     2     0   |
";
        let found = instance_profiles(lgip);
        let seen: Vec<_> = found.iter().map(|p| (p.id, p.free, p.total)).collect();
        assert_eq!(seen, [(19, 6, 7), (9, 1, 2)]);
    }

    #[test]
    fn shapes_are_checked() {
        for text in
            ["1g.5gb", "7g.40gb", "1g.5gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "2g.48gb-me"]
        {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "g.gb",
            "0g.5gb",
            "1g.5gb+",
            "1g.5gb-",
            "1g.5gb+-me",
            "1g.5gbme",
            "1g.5",
            "+1g.5gb",
            "1g.5gb+a b",
            "9999g.1gb",
        ] {
            assert!(text.parse::<Shape>().is_err(), "{text:?} was taken");
        }
    }
}
