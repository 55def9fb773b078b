//! The HTTP APIs of all tenants, in memory and on the disk: `apis/ID.json`. A change is durable before it is
//! visible.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::sync::Mutex;
use unlade_fn_http_event::{Api, Integration, Router};

use crate::stacks::file;

/// Most HTTP APIs of a tenant, as in API Gateway.
pub const APIS_MAX: usize = 600;
/// Longest definition, in bytes.
pub const API_BYTES_MAX: usize = 1 << 20;

/// An API with its routes.
#[derive(Debug)]
pub struct Served {
    /// The definition.
    pub api: Api,
    /// The routes, with their functions.
    pub router: Router<Option<Integration>>,
}

/// See the [module](self).
pub struct Apis {
    directory: PathBuf,
    all: RefCell<BTreeMap<String, Rc<Served>>>,
    /// A change and its write: none comes between.
    turn: Mutex<()>,
}

fn served(api: Api) -> Result<Served, String> {
    let router = api.router().map_err(|error| error.to_string())?;
    Ok(Served { api, router })
}

impl Apis {
    /// Creates a set without APIs.
    pub fn new(state: &Path) -> Apis {
        Apis { directory: state.join("apis"), all: RefCell::default(), turn: Mutex::default() }
    }

    /// Reads all APIs.
    ///
    /// # Errors
    /// The system call failed, or a file is damaged.
    pub fn load(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let Some(id) = name.strip_suffix(".json") else { continue };
            let damaged = |why: String| {
                let path = self.directory.join(&name);
                io::Error::other(format!("{} is damaged: {why}", path.display()))
            };
            let read = file::read::<Api>(&self.directory, &name);
            if let Some(api) = read.map_err(|error| damaged(error.to_string()))? {
                let served = served(api).map_err(damaged)?;
                self.all.borrow_mut().insert(id.to_owned(), Rc::new(served));
            }
        }
        Ok(())
    }

    /// An API.
    pub fn get(&self, id: &str) -> Option<Rc<Served>> {
        self.all.borrow().get(id).cloned()
    }

    /// Changes an API: creates it, or removes it if the result is `None`. The change is durable when this
    /// returns.
    ///
    /// # Errors
    /// The change is refused, a route is invalid, there are too many APIs, or the change cannot be stored;
    /// the API is then as before.
    pub async fn change(
        &self,
        id: &str,
        act: impl FnOnce(Option<Api>) -> Result<Option<Api>, String>,
    ) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let before = self.get(id).map(|served| served.api.clone());
        let after = act(before.clone())?.map(served).transpose()?;
        if let (None, Some(after)) = (&before, &after) {
            self.check_room(&after.api.tenant)?;
        }
        let (directory, name) = (self.directory.clone(), format!("{id}.json"));
        let definition = after.as_ref().map(|served| served.api.clone());
        let write = move || match &definition {
            Some(api) => {
                let bytes = serde_json::to_vec(api)?.len();
                match bytes > API_BYTES_MAX {
                    true => {
                        Err(io::Error::other(format!("it is longer than {API_BYTES_MAX} bytes")))
                    }
                    false => file::write(&directory, &name, api).map(|_| ()),
                }
            }
            None => remove(&directory, &name),
        };
        let stored = tokio::task::spawn_blocking(write).await;
        let stored = stored.unwrap_or_else(|error| Err(io::Error::other(error)));
        stored.map_err(|error| format!("the HTTP API {id} cannot be stored: {error}"))?;
        match after {
            Some(after) => self.all.borrow_mut().insert(id.to_owned(), Rc::new(after)),
            None => self.all.borrow_mut().remove(id),
        };
        Ok(())
    }

    fn check_room(&self, tenant: &str) -> Result<(), String> {
        let all = self.all.borrow();
        match all.values().filter(|served| served.api.tenant == tenant).count() >= APIS_MAX {
            true => Err(format!("a tenant has {APIS_MAX} HTTP APIs at most: delete old ones")),
            false => Ok(()),
        }
    }
}

fn remove(directory: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => {
            removed?;
            File::open(directory)?.sync_all()
        }
    }
}

#[cfg(test)]
mod tests {
    use unlade_fn_http_event::Route;

    use super::*;

    fn api(tenant: &str) -> Api {
        Api { tenant: tenant.to_owned(), ..Api::default() }
    }

    #[tokio::test]
    async fn an_api_is_durable_or_has_not_changed() {
        let state = tempfile::tempdir().unwrap();
        let apis = Apis::new(state.path());
        apis.load().unwrap();
        apis.change("a", |_| Ok(Some(api("t")))).await.unwrap();
        let route = |key: &str| Route { key: key.to_owned(), integration: "i".to_owned() };
        let add = |id: &'static str, key: &'static str| {
            move |own: Option<Api>| {
                let mut own = own.ok_or("absent")?;
                own.routes.insert(id.to_owned(), route(key));
                Ok(Some(own))
            }
        };
        apis.change("a", add("r", "GET /a")).await.unwrap();
        assert!(apis.change("a", add("s", "GET /a")).await.unwrap_err().contains("twice"));
        assert!(apis.change("a", add("s", "wrong")).await.unwrap_err().contains("route key"));
        assert_eq!(apis.change("b", add("r", "GET /a")).await.unwrap_err(), "absent");
        let again = Apis::new(state.path());
        again.load().unwrap();
        assert_eq!(again.get("a").unwrap().api, apis.get("a").unwrap().api);
        assert!(again.get("a").unwrap().router.find("GET", "/a").is_some());
        let long = |own: Option<Api>| {
            let name = "x".repeat(API_BYTES_MAX);
            Ok(Some(Api { name, ..own.unwrap_or_default() }))
        };
        assert!(apis.change("a", long).await.unwrap_err().contains("longer"));
        assert_eq!(apis.get("a").unwrap().api.name, "");
        apis.change("a", |_| Ok(None)).await.unwrap();
        assert!(apis.get("a").is_none());
        let again = Apis::new(state.path());
        again.load().unwrap();
        assert!(again.get("a").is_none());
        fs::write(state.path().join("apis/a.json"), "{").unwrap();
        assert!(again.load().unwrap_err().to_string().contains("a.json is damaged"));
    }

    #[tokio::test]
    async fn a_tenant_has_a_bounded_number_of_apis() {
        let state = tempfile::tempdir().unwrap();
        let apis = Apis::new(state.path());
        for number in 0..APIS_MAX {
            let served = Rc::new(served(api("t")).unwrap());
            apis.all.borrow_mut().insert(number.to_string(), served);
        }
        let refused = apis.change("new", |_| Ok(Some(api("t")))).await.unwrap_err();
        assert!(refused.contains("at most"), "{refused}");
        apis.change("new", |_| Ok(Some(api("other")))).await.unwrap();
    }
}
