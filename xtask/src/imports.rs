//! Which file of a crate names items of which other file.
//!
//! A file names an item by a private `use`, or by a path in its code, its macros or its attributes.
//! Re-exports lead to the file that defines the item; `mod` declarations and re-exports count as no
//! import. Tests (`#[cfg(test)]`) are left out, and so are methods, which no path names.
//!
//! Names are resolved within the crate, as the compiler does for modules, items, `use`, globs and
//! renames. Items that a macro makes belong to the file of the module in which they are sought.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ForeignItem, Item, ItemMod, ItemUse, Lit, Meta, UseTree, Visibility};

/// Names that a file takes from another: (the file that names, the file that defines) → the names.
pub type Imports = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// Most files of a crate.
const FILES_MAX: usize = 2_000;

/// The imports between the files of the crate whose root file is `root`, such as `src/lib.rs`.
///
/// # Errors
/// A file is absent or has no Rust syntax.
pub fn imports(root: &Path) -> Result<Imports> {
    let mut tree = Tree::default();
    let directory = root.parent().unwrap_or(Path::new("")).to_owned();
    tree.read(root, None, directory)?;
    let mut found = Imports::new();
    for (module, items) in &tree.items {
        let mut names = Names { tree: &tree, module: *module, found: &mut found };
        items.iter().for_each(|item| names.visit_item(item));
    }
    Ok(found)
}

/// The modules of a crate.
#[derive(Default)]
struct Tree {
    modules: Vec<Module>,
    /// The items of each module, by its index.
    items: Vec<(usize, Vec<Item>)>,
    /// Macros by their names: their scope is that of the text, not of a module.
    macros: HashMap<String, PathBuf>,
}

/// A module: a file, or `mod name { … }` within one.
struct Module {
    file: PathBuf,
    /// The folder of the files of its child modules.
    directory: PathBuf,
    parent: Option<usize>,
    names: HashMap<String, Vec<Target>>,
    uses: Vec<Use>,
    /// It calls a macro, which may make items.
    has_macro: bool,
}

/// A name in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// An item, by its file and name.
    Item(PathBuf, String),
    /// A module, by its index.
    Module(usize),
}

/// One leaf of a `use`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Use {
    path: Vec<String>,
    /// The name that it brings into scope; `None`: all names of `path`.
    name: Option<String>,
}

impl Tree {
    /// Reads the file of a module, and those of its children.
    fn read(&mut self, file: &Path, parent: Option<usize>, directory: PathBuf) -> Result<usize> {
        if self.modules.len() >= FILES_MAX {
            bail!("{}: more than {FILES_MAX} modules; does one include itself?", file.display());
        }
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.module(file, parent, directory, parsed.items)
    }

    fn module(
        &mut self,
        file: &Path,
        parent: Option<usize>,
        directory: PathBuf,
        items: Vec<Item>,
    ) -> Result<usize> {
        let index = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            directory,
            parent,
            names: HashMap::new(),
            uses: Vec::new(),
            has_macro: false,
        });
        let mut kept = Vec::new();
        for item in items.into_iter().filter(|item| !is_test(item_attributes(item))) {
            match item {
                Item::Mod(child) => self.child(index, child)?,
                item => {
                    self.define(index, &item);
                    kept.push(item);
                }
            }
        }
        self.items.push((index, kept));
        Ok(index)
    }

    /// Reads a child module, from its own file or from the braces.
    fn child(&mut self, parent: usize, item: ItemMod) -> Result<()> {
        let name = name_of(&item.ident);
        let (file, directory) = match self.modules.get(parent) {
            Some(module) => (module.file.clone(), module.directory.clone()),
            None => return Ok(()),
        };
        let own = directory.join(&name);
        let child = if let Some((_, items)) = item.content {
            self.module(&file, Some(parent), own, items)?
        } else if let Some(path) = path_attribute(&item.attrs) {
            let path = file.parent().unwrap_or(Path::new("")).join(path);
            let directory = path.parent().unwrap_or(Path::new("")).to_owned();
            self.read(&path, Some(parent), directory)?
        } else {
            let beside = directory.join(format!("{name}.rs"));
            let within = own.join("mod.rs");
            let path = if beside.exists() { beside } else { within };
            self.read(&path, Some(parent), own)?
        };
        self.name(parent, name, Target::Module(child));
        Ok(())
    }

    fn name(&mut self, module: usize, name: String, target: Target) {
        if let Some(module) = self.modules.get_mut(module) {
            module.names.entry(name).or_default().push(target);
        }
    }

    /// Notes the names that an item brings into its module.
    fn define(&mut self, index: usize, item: &Item) {
        let Some(module) = self.modules.get_mut(index) else { return };
        let file = module.file.clone();
        let mut inner = InnerUses { found: Vec::new() };
        inner.visit_item(item);
        module.uses.extend(inner.found);
        let names = match item {
            Item::Const(item) => vec![name_of(&item.ident)],
            Item::Enum(item) => vec![name_of(&item.ident)],
            Item::Fn(item) => vec![name_of(&item.sig.ident)],
            Item::Static(item) => vec![name_of(&item.ident)],
            Item::Struct(item) => vec![name_of(&item.ident)],
            Item::Trait(item) => vec![name_of(&item.ident)],
            Item::TraitAlias(item) => vec![name_of(&item.ident)],
            Item::Type(item) => vec![name_of(&item.ident)],
            Item::Union(item) => vec![name_of(&item.ident)],
            Item::ForeignMod(item) => item.items.iter().filter_map(foreign_name).collect(),
            Item::Macro(item) => {
                let name = item.ident.as_ref().map(name_of);
                module.has_macro |= name.is_none();
                if let Some(name) = &name {
                    self.macros.insert(name.clone(), file.clone());
                    if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) {
                        self.name(0, name.clone(), Target::Item(file.clone(), name.clone()));
                    }
                }
                name.into_iter().collect()
            }
            _ => Vec::new(),
        };
        for name in names {
            self.name(index, name.clone(), Target::Item(file.clone(), name));
        }
    }

    /// The items and modules that a path means, as `module` sees it. A path beyond an item (a
    /// variant, an associated function) means the item.
    fn resolve(&self, module: usize, path: &[String]) -> Vec<Target> {
        self.follow(module, path, &mut Vec::new())
    }

    fn follow(&self, module: usize, path: &[String], seen: &mut Vec<(usize, Use)>) -> Vec<Target> {
        let mut found = Vec::new();
        for (position, segment) in path.iter().enumerate() {
            let next = match (segment.as_str(), position) {
                ("crate", 0) => vec![Target::Module(0)],
                ("self", 0) => vec![Target::Module(module)],
                ("super", 0) => self.above(module),
                ("super", _) => found.iter().flat_map(|t| self.above_target(t)).collect(),
                (name, 0) => self.look_up(module, name, seen),
                (name, _) => {
                    // A function may have the name of a module, but has no members.
                    let is_module = |target: &Target| matches!(target, Target::Module(_));
                    if found.iter().any(is_module) {
                        found.retain(is_module);
                    }
                    let named = |target: &Target| match target {
                        Target::Item(..) => vec![target.clone()],
                        Target::Module(inner) => self.member(*inner, name, seen),
                    };
                    found.iter().flat_map(named).collect()
                }
            };
            found = next;
            if found.is_empty() {
                break;
            }
        }
        found
    }

    fn above(&self, module: usize) -> Vec<Target> {
        let parent = self.modules.get(module).and_then(|module| module.parent);
        parent.map(Target::Module).into_iter().collect()
    }

    fn above_target(&self, target: &Target) -> Vec<Target> {
        match target {
            Target::Module(module) => self.above(*module),
            Target::Item(..) => Vec::new(),
        }
    }

    /// `name` in another module: one that nothing there defines is of a macro of that module.
    fn member(&self, module: usize, name: &str, seen: &mut Vec<(usize, Use)>) -> Vec<Target> {
        let mut found = self.look_up(module, name, seen);
        if let Some(module) = self.modules.get(module)
            && found.is_empty()
            && module.has_macro
        {
            found.push(Target::Item(module.file.clone(), name.to_owned()));
        }
        found
    }

    /// `name` in the scope of a module.
    fn look_up(&self, index: usize, name: &str, seen: &mut Vec<(usize, Use)>) -> Vec<Target> {
        let Some(module) = self.modules.get(index) else { return Vec::new() };
        let mut found = module.names.get(name).cloned().unwrap_or_default();
        let named = module.uses.iter().filter(|leaf| leaf.name.as_deref() == Some(name));
        for leaf in named {
            found.extend(self.through(
                index,
                leaf,
                |tree, seen| tree.follow(index, &leaf.path, seen),
                seen,
            ));
        }
        if !found.is_empty() {
            return found;
        }
        for leaf in module.uses.iter().filter(|leaf| leaf.name.is_none()) {
            found.extend(self.through(
                index,
                leaf,
                |tree, seen| {
                    let inner = |target: Target, seen: &mut Vec<_>| match target {
                        Target::Module(inner) => tree.look_up(inner, name, seen),
                        Target::Item(..) => Vec::new(),
                    };
                    let targets = tree.follow(index, &leaf.path, seen);
                    targets.into_iter().flat_map(|target| inner(target, seen)).collect()
                },
                seen,
            ));
        }
        found
    }

    /// Goes through a `use`, unless the way there began with it.
    fn through(
        &self,
        module: usize,
        leaf: &Use,
        way: impl FnOnce(&Self, &mut Vec<(usize, Use)>) -> Vec<Target>,
        seen: &mut Vec<(usize, Use)>,
    ) -> Vec<Target> {
        let step = (module, leaf.clone());
        if seen.contains(&step) {
            return Vec::new();
        }
        seen.push(step);
        let found = way(self, seen);
        seen.pop();
        found
    }
}

/// Finds the `use` of a function's body.
struct InnerUses {
    found: Vec<Use>,
}

impl<'ast> Visit<'ast> for InnerUses {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            leaves(&item.tree, &mut Vec::new(), &mut self.found);
        }
    }
}

/// Notes the items of other files that the code of a module names.
struct Names<'a> {
    tree: &'a Tree,
    module: usize,
    found: &'a mut Imports,
}

impl Names<'_> {
    fn note(&mut self, path: &[String]) {
        let Some(own) = self.tree.modules.get(self.module) else { return };
        for target in self.tree.resolve(self.module, path) {
            if let Target::Item(file, name) = target
                && file != own.file
            {
                self.found.entry((own.file.clone(), file)).or_default().insert(name);
            }
        }
    }

    fn note_macro(&mut self, path: &[String]) {
        self.note(path);
        let Some(own) = self.tree.modules.get(self.module) else { return };
        if let [name] = path
            && let Some(file) = self.tree.macros.get(name)
            && *file != own.file
        {
            self.found.entry((own.file.clone(), file.clone())).or_default().insert(name.clone());
        }
    }

    /// The paths among the tokens of a macro: `a`, `a::b`; neither `.a` nor `::a`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // Punctuation since the last identifier.
        let mut between = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if between != "::" || path.is_empty() {
                        self.end(&mut path);
                    }
                    let is_start = path.is_empty() && !["::", ".", "'"].contains(&&*between);
                    if is_start || !path.is_empty() {
                        path.push(name_of(&ident));
                    }
                    between.clear();
                }
                TokenTree::Punct(mark) => match (between.as_str(), mark.as_char()) {
                    ("", ':') | (":", ':') => between.push(':'),
                    ("", '!') if !path.is_empty() => {
                        self.note_macro(&std::mem::take(&mut path));
                        between.push('!');
                    }
                    (_, mark) => {
                        self.end(&mut path);
                        between = mark.to_string();
                    }
                },
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    between.clear();
                    self.tokens(group.stream());
                    if group.delimiter() == Delimiter::None {
                        between.push('.');
                    }
                }
                TokenTree::Literal(_) => {
                    self.end(&mut path);
                    between.clear();
                }
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if !path.is_empty() {
            self.note(&std::mem::take(path));
        }
    }

    /// The paths in the strings of an attribute, as in `#[serde(default = "defaults::port")]`.
    fn strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.strings(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal)
                        && let Ok(path) = text.parse::<syn::Path>()
                    {
                        self.note(&segments(&path));
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

/// Leaves out what `#[cfg(test)]` is on.
macro_rules! without_tests {
    ($($method:ident: $node:ident, $attributes:expr;)*) => {
        $(
            fn $method(&mut self, node: &'ast syn::$node) {
                let attributes: fn(&syn::$node) -> &[Attribute] = $attributes;
                if !is_test(attributes(node)) {
                    visit::$method(self, node);
                }
            }
        )*
    };
}

impl<'ast> Visit<'ast> for Names<'_> {
    without_tests! {
        visit_item: Item, item_attributes;
        visit_impl_item_fn: ImplItemFn, |node| &node.attrs;
        visit_impl_item_const: ImplItemConst, |node| &node.attrs;
        visit_trait_item_fn: TraitItemFn, |node| &node.attrs;
        visit_field: Field, |node| &node.attrs;
        visit_field_value: FieldValue, |node| &node.attrs;
        visit_variant: Variant, |node| &node.attrs;
        visit_arm: Arm, |node| &node.attrs;
        visit_local: Local, |node| &node.attrs;
        visit_expr_block: ExprBlock, |node| &node.attrs;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_some() || !matches!(item.vis, Visibility::Inherited) {
            return;
        }
        let mut found = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut found);
        found.iter().for_each(|leaf| self.note(&leaf.path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.note(&segments(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_macro(&segments(&call.path));
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
            self.strings(list.tokens.clone());
        }
    }
}

/// The leaves of a `use`, after `prefix`.
fn leaves(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<Use>) {
    let leaf = |prefix: &[String], last: String, name: String| {
        let mut path = prefix.to_vec();
        // `a::{self}` is `a`.
        if last != "self" || path.is_empty() {
            path.push(last);
        }
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        Use { path, name: Some(name) }
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(name_of(&path.ident));
            leaves(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) => {
            found.push(leaf(prefix, name_of(&name.ident), name_of(&name.ident)));
        }
        UseTree::Rename(rename) => {
            found.push(leaf(prefix, name_of(&rename.ident), name_of(&rename.rename)));
        }
        UseTree::Glob(_) => found.push(Use { path: prefix.clone(), name: None }),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| leaves(tree, prefix, found));
        }
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| name_of(&segment.ident)).collect()
}

/// The name of an identifier, `r#type` as `type`.
fn name_of(ident: &proc_macro2::Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

fn foreign_name(item: &ForeignItem) -> Option<String> {
    match item {
        ForeignItem::Fn(item) => Some(name_of(&item.sig.ident)),
        ForeignItem::Static(item) => Some(name_of(&item.ident)),
        ForeignItem::Type(item) => Some(name_of(&item.ident)),
        _ => None,
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The file of `#[path = "…"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let value = attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => Some(&pair.value),
        _ => None,
    })?;
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Returns true if the item is absent unless tests are compiled.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|meta| holds(&meta) == Some(false))
    })
}

/// The value of a condition of `cfg` without tests; `None` if it depends on something else.
fn holds(meta: &Meta) -> Option<bool> {
    let list = match meta {
        Meta::Path(path) if path.is_ident("test") => return Some(false),
        Meta::List(list) => list,
        Meta::Path(_) | Meta::NameValue(_) => return None,
    };
    let parts = list.parse_args_with(Punctuated::<Meta, syn::Token![,]>::parse_terminated).ok()?;
    let mut values = parts.iter().map(holds);
    if list.path.is_ident("not") {
        values.next()?.map(|value| !value)
    } else if list.path.is_ident("all") {
        values.any(|value| value == Some(false)).then_some(false)
    } else if list.path.is_ident("any") {
        values.all(|value| value == Some(false)).then_some(false)
    } else {
        None
    }
}
