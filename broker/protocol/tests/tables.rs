//! Tables with a fault are refused at build time, with the line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, dead_code)]

#[path = "../build/model.rs"]
mod model;
#[path = "../build/parse.rs"]
mod parse;

use model::Range;

fn table(fields: &str) -> String {
    format!(
        "# About it.\n# And more.\napi 7 Test\nrequest 1-5 flexible 3+\n{fields}\nresponse 1-5 flexible 3+\n  a i32\n"
    )
}

fn fault(fields: &str) -> String {
    match parse::api(&table(fields)) {
        Ok(_) => panic!("accepted: {fields}"),
        Err(error) => error,
    }
}

#[test]
fn a_table_in_memory() {
    let fields = "  list []Item 2+ null=3+ default=null ignorable\n    name string 4\n  other Item\n  extra i64 3-4 tag=6 default=-1";
    let api = parse::api(&table(fields)).unwrap();
    assert_eq!((api.key, api.name.as_str(), api.about.as_str()), (7, "Test", "About it. And more."));
    let root = &api.request.structs[0];
    assert_eq!((root.name.as_str(), root.fields.len()), ("TestRequest", 3));
    let list = &root.fields[0];
    assert!(list.versions == Range { min: 2, max: 5 } && list.null == Some(Range { min: 3, max: 5 }));
    assert_eq!(list.rust(), "Option<Vec<Item>>");
    let extra = &root.fields[2];
    assert!(extra.versions == Range { min: 3, max: 4 } && extra.tag == Some(6));
    assert_eq!(extra.versions.condition(root.versions).unwrap(), "(3..=4).contains(&v)");
    assert!(api.request.structs[1].fields[0].versions == Range { min: 4, max: 4 });
}

#[test]
fn faults() {
    for (fields, expected) in [
        ("  a i32 6", "line 5: the field has versions that its structure has not"),
        ("  a i32 4-2", "line 5: bad versions or unknown option"),
        ("  a i32 ignorabel", "line 5: bad versions or unknown option"),
        ("  a i32 defualt=3", "line 5: unknown option"),
        ("  a i32 null", "line 5: this type cannot be null"),
        ("  a string 2+ null=1+", "line 5: null in versions that the field has not"),
        ("  a i32 2+ tag=0", "line 5: a tag before the first flexible version"),
        ("  a", "line 5: expected: field type"),
        ("  a records", "line 5: records must be nullable and no array"),
        ("  a Missing", "structure Missing of a is not declared"),
        ("  a Item\n    x i8\n  b Item\n    y i8", "structure Item is there twice in TestRequest"),
    ] {
        assert_eq!(fault(fields), expected);
    }
    assert!(parse::api("").is_err());
    assert!(parse::api("api x Test\n").is_err());
    assert!(parse::api("api 1 Test\nrequest 0-1\n").is_err());
    assert!(parse::api("api 1 Test\nrequest 0-1\nresponse 0-2\n").is_err());
}
