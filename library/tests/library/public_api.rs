//! All public items of the library, compared with `tests/public-api.txt`. A change of that file is a change that users see.
//! To write it anew: `THROTTLE_REGENERATE=1 cargo test -p throttle-limits --test library public`.

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::{ImplItem, Item, ItemImpl, TraitItem, UseTree, Visibility};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A module by its path, and what it declares.
type Modules = BTreeMap<Vec<String>, Vec<Item>>;

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether the documentation, and what semantic versions cover, are without it.
fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| text(&attribute.meta) == "doc(hidden)")
}

/// Reads a file without its comments, and the files of its modules.
fn read(file: &Path, path: &[String], modules: &mut Modules) {
    let text = fs::read_to_string(file).unwrap();
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let items = syn::parse_file(&code).unwrap().items;
    let folder = if path.is_empty() { file.parent().unwrap().to_owned() } else { file.with_extension("") };
    for item in &items {
        if let Item::Mod(inner) = item
            && inner.content.is_none()
            && !inner.attrs.iter().any(|attribute| self::text(&attribute.meta) == "cfg(test)")
        {
            let name = inner.ident.to_string();
            read(&folder.join(format!("{name}.rs")), &[path, &[name]].concat(), modules);
        }
    }
    modules.insert(path.to_vec(), items);
}

/// The name and the target of each import in a tree.
fn imports(tree: &UseTree, before: &[String]) -> Vec<(String, Vec<String>)> {
    let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
    match tree {
        UseTree::Path(path) => imports(&path.tree, &with(&path.ident)),
        UseTree::Name(name) => vec![(name.ident.to_string(), with(&name.ident))],
        UseTree::Rename(name) => vec![(name.rename.to_string(), with(&name.ident))],
        UseTree::Group(group) => group.items.iter().flat_map(|tree| imports(tree, before)).collect(),
        UseTree::Glob(_) => Vec::new(),
    }
}

/// Where an item is declared whose path is written in a module: that module, and its name.
fn declared(modules: &Modules, module: &[String], written: &[String]) -> Option<(Vec<String>, String)> {
    let (name, path) = written.split_last()?;
    let mut at = module.to_vec();
    for (place, part) in path.iter().enumerate() {
        match part.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => _ = at.pop(),
            _ if place > 0 || modules.contains_key(&[&at[..], std::slice::from_ref(part)].concat()) => {
                at.push(part.clone());
            }
            _ => return None,
        }
    }
    let items = modules.get(&at)?;
    if items.iter().any(|item| name_of(item).is_some_and(|(own, _)| own == *name)) {
        return Some((at, name.clone()));
    }
    let uses = items.iter().filter_map(|item| if let Item::Use(item) = item { Some(&item.tree) } else { None });
    let target = uses.flat_map(|tree| imports(tree, &[])).find(|(own, _)| own == name)?.1;
    declared(modules, &at, &target)
}

fn name_of(item: &Item) -> Option<(String, &Visibility)> {
    let (ident, visibility) = match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Mod(item) if !is_hidden(&item.attrs) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((ident.to_string(), visibility))
}

fn text(tokens: impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in
        [(" :: ", "::"), (" < ", "<"), (" >", ">"), (" ,", ","), (" (", "("), ("& ", "&"), (" :", ":"), (" ;", "")]
    {
        text = text.replace(from, to);
    }
    text
}

/// What a declaration shows of itself. Private fields are left out.
fn shown(item: &Item) -> Vec<String> {
    let method = |item: &TraitItem| if let TraitItem::Fn(item) = item { text(&item.sig) } else { text(item) };
    match item {
        Item::Const(item) => vec![format!("const: {}", text(&item.ty))],
        Item::Fn(item) => vec![text(&item.sig)],
        Item::Struct(item) => {
            let public = item.fields.iter().filter(|field| is_public(&field.vis)).map(text);
            [vec![format!("struct{}", text(&item.generics))], public.collect()].concat()
        }
        Item::Enum(item) => {
            let bare = |variant: &syn::Variant| text(syn::Variant { attrs: Vec::new(), ..variant.clone() });
            let shown = item.variants.iter().filter(|variant| !is_hidden(&variant.attrs));
            [vec!["enum".to_owned()], shown.map(bare).collect()].concat()
        }
        Item::Trait(item) => {
            [vec![format!("trait{}", text(&item.generics))], item.items.iter().map(method).collect()].concat()
        }
        Item::Type(item) => vec![format!("type = {}", text(&item.ty))],
        _ => Vec::new(),
    }
}

/// The public methods and the traits of a type.
fn implemented(item: &ItemImpl) -> Vec<String> {
    if let Some((_, of, _)) = &item.trait_ {
        return vec![format!("impl{} {} for {}", text(&item.generics), text(of), text(&item.self_ty))];
    }
    let method = |inner: &ImplItem| match inner {
        ImplItem::Fn(method) if is_public(&method.vis) && !is_hidden(&method.attrs) => Some(text(&method.sig)),
        ImplItem::Const(item) if is_public(&item.vis) => Some(format!("const {}: {}", item.ident, text(&item.ty))),
        _ => None,
    };
    item.items.iter().filter_map(method).collect()
}

/// What was found: the lines, and the full name under which each declared item was listed.
#[derive(Default)]
struct Found {
    lines: BTreeSet<String>,
    names: BTreeMap<(Vec<String>, String), String>,
}

/// Adds what can be reached from a module that is public under a name. An item that is listed already is one line.
fn walk(modules: &Modules, module: &[String], name: &str, found: &mut Found) {
    let public =
        modules[module].iter().filter(|item| name_of(item).is_some_and(|(_, visibility)| is_public(visibility)));
    let own = public.map(|item| (name_of(item).unwrap().0, module.to_vec()));
    let mut reached: Vec<_> = own.map(|(own, at)| (own.clone(), (at, own))).collect();
    for item in &modules[module] {
        if let Item::Use(item) = item
            && is_public(&item.vis)
            && !is_hidden(&item.attrs)
        {
            let imported = imports(&item.tree, &[]).into_iter();
            reached.extend(imported.filter_map(|(name, target)| Some((name, declared(modules, module, &target)?))));
        }
    }
    for (shown_as, (at, declared_as)) in reached {
        let full = format!("{name}::{shown_as}");
        let inner = [&at[..], std::slice::from_ref(&declared_as)].concat();
        if modules.contains_key(&inner) {
            walk(modules, &inner, &full, found);
            continue;
        }
        let listed = found.names.entry((at.clone(), declared_as.clone())).or_insert_with(|| full.clone());
        if *listed != full {
            found.lines.insert(format!("{full}  = {listed}"));
            continue;
        }
        let lines = &mut found.lines;
        let own = modules[&at].iter().filter(|item| name_of(item).is_some_and(|(own, _)| own == declared_as));
        lines.extend(own.flat_map(shown).map(|shown| format!("{full}  {shown}")));
        for (path, item) in modules.iter().flat_map(|(path, items)| items.iter().map(move |item| (path, item))) {
            let Item::Impl(item) = item else { continue };
            let syn::Type::Path(of) = &*item.self_ty else { continue };
            let of: Vec<_> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            if declared(modules, path, &of).as_ref() == Some(&(at.clone(), declared_as.clone())) {
                lines.extend(implemented(item).into_iter().map(|shown| format!("{full}  {shown}")));
            }
        }
    }
}

#[test]
fn the_public_items_are_those_of_the_committed_list() {
    let (mut modules, mut found) = (Modules::new(), Found::default());
    read(&Path::new(ROOT).join("src/lib.rs"), &[], &mut modules);
    walk(&modules, &[], "throttle_limits", &mut found);
    let lines = found.lines;
    let own = lines.iter().filter(|line| !line.contains("  impl")).count();
    println!("{own} items, and {} implementations of traits", lines.len() - own);
    assert!(own <= 250, "{own} items are more than a user can learn");
    let found = lines.iter().cloned().collect::<Vec<_>>().join("\n");
    let file = Path::new(ROOT).join("tests/public-api.txt");
    if std::env::var_os("THROTTLE_REGENERATE").is_some() {
        fs::write(&file, found + "\n").unwrap();
    }
    let listed = fs::read_to_string(&file).unwrap_or_default();
    let differ = lines.iter().map(String::as_str).collect::<BTreeSet<_>>();
    let listed: BTreeSet<_> = listed.lines().collect();
    let new: Vec<_> = differ.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&differ).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "new: {new:#?}\ngone: {gone:#?}\nTHROTTLE_REGENERATE=1 writes the list anew"
    );
}
