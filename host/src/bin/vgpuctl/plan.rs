//! `plan`: where vGPUs would be placed.

use std::collections::HashMap;

use serde::Serialize;
use vgpu_host_api::names::option;
use zbus::Variant;

use crate::{
    args::Plan,
    change::among,
    failure::{Code, Failure, Result},
    json::some,
    output::{Output, table},
    service::Service,
};

#[derive(Serialize)]
struct Planned {
    choices: Vec<Choice>,
    remaining: Vec<Remaining>,
}

#[derive(Serialize)]
struct Choice {
    profile: String,
    gpu: String,
    function: Option<String>,
    steps: Vec<String>,
}

#[derive(Serialize)]
struct Remaining {
    gpu: String,
    profile: String,
    now: u32,
    afterwards: u32,
}

/// `vgpuctl plan`
pub(crate) async fn run(service: &Service, output: &Output, wanted: &Plan) -> Result<()> {
    let wishes = wanted.wishes.iter().map(|text| wish(text)).collect::<Result<Vec<_>>>()?;
    let mut options: HashMap<&str, Variant<'_>> = among(&wanted.among).collect();
    if let Some(gpu) = &wanted.gpu {
        options.insert(option::GPU, Variant::from(gpu.as_str()));
    }
    let answer = service.manager().await?.plan_vgpus(&wishes, &options).await;
    let (choices, remaining) = service.said(answer)?;
    let planned = Planned {
        choices: choices
            .into_iter()
            .map(|choice| Choice {
                profile: choice.profile.into_owned(),
                gpu: choice.gpu.into_owned(),
                function: some(choice.function.into_owned()),
                steps: choice.steps.into_iter().map(Into::into).collect(),
            })
            .collect(),
        remaining: remaining
            .into_iter()
            .map(|left| Remaining {
                gpu: left.gpu.into_owned(),
                profile: left.profile.into_owned(),
                now: left.now,
                afterwards: left.afterwards,
            })
            .collect(),
    };
    output.print(&planned, Planned::text)
}

/// `PROFILE` or `PROFILExN`; a name that ends in an x and digits is written with
/// its number: `x1x1`.
fn wish(text: &str) -> Result<(&str, u32)> {
    let Some((profile, count)) = text.rsplit_once('x').filter(|(profile, count)| {
        !profile.is_empty() && !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit())
    }) else {
        return Ok((text, 1));
    };
    match count.parse() {
        Ok(count) if count > 0 => Ok((profile, count)),
        _ => Err(Failure::new(
            Code::Usage,
            format!("{text:?} asks for {count} vGPUs; write for example a40-8qx2"),
        )),
    }
}

impl Planned {
    fn text(&self) -> String {
        let rows = self.choices.iter().map(|choice| {
            [
                choice.profile.clone(),
                choice.gpu.clone(),
                choice.function.clone().unwrap_or_default(),
                choice.steps.join("; "),
            ]
        });
        let choices = table(["PROFILE", "GPU", "FUNCTION", "STEPS"], rows);
        let rows = self.remaining.iter().map(|left| {
            [
                left.gpu.clone(),
                left.profile.clone(),
                left.now.to_string(),
                left.afterwards.to_string(),
            ]
        });
        let remaining = table(["GPU", "PROFILE", ">NOW", ">AFTERWARDS"], rows);
        format!("{choices}\n{remaining}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_a_profile_and_how_many() {
        let said = |text: &'static str| wish(text).ok();
        assert_eq!(said("a40-4q"), Some(("a40-4q", 1)));
        assert_eq!(said("a40-8qx2"), Some(("a40-8q", 2)));
        assert_eq!(said("NVIDIA A40-8Qx12"), Some(("NVIDIA A40-8Q", 12)));
        assert_eq!(said("mi300x-vf"), Some(("mi300x-vf", 1)));
        assert_eq!(said("x2"), Some(("x2", 1)));
        assert_eq!(said("a40-8qx0"), None);
        assert_eq!(said("a40-8qx99999999999"), None);
    }
}
