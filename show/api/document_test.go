package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

var update = flag.Bool("update", false, "print openapi.json again")

// TestDocument: the document that is served is what the operations and their types say.
func TestDocument(t *testing.T) {
	d := document{comments: commentsOf(t, "fleet", "serve/wire", "show/view", "show/api"), schemas: map[string]any{}, named: map[string]reflect.Type{}}
	want, err := json.MarshalIndent(d.whole(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, Document) {
		t.Error("openapi.json is not what the operations say: go test ./show/api -run TestDocument -update, then python3 python/generate.py, and look at what changed")
	}
}

// document collects the schemas of types as they are met.
type document struct {
	comments map[string]string // by package.Type or package.Type.Field
	schemas  map[string]any
	named    map[string]reflect.Type
}

type tree = map[string]any

func (d *document) whole() tree {
	paths := tree{}
	for _, o := range Operations {
		at, _ := paths[Prefix+o.Path].(tree)
		if at == nil {
			at = tree{}
			paths[Prefix+o.Path] = at
		}
		at[strings.ToLower(o.Method)] = d.operation(o)
	}
	return tree{
		"openapi": "3.1.0",
		"info": tree{"title": "Pagurus", "version": "1", "license": tree{"name": "see LICENSE of the repository", "identifier": "Apache-2.0"},
			"description": "What programs can ask of a cluster's controller. Lengths of time are nanoseconds (_ns). A refusal is a problem of RFC 9457, whose detail is the sentence that the command line prints. An Idempotency-Key names a request that makes a job, a move, a checkpoint, a growth or a token, or sends a signal: made again under the same key it has its effect once, and a token is told again to who had it made. Under a key that was given to a request which asks something else it is refused (422)."},
		"servers":  []any{tree{"url": "/"}},
		"security": []any{tree{"token": []any{}}, tree{"certificate": []any{}}, tree{}},
		"paths":    paths,
		"components": tree{"schemas": d.schemas, "securitySchemes": tree{
			"token":       tree{"type": "http", "scheme": "bearer", "description": "of `pagurus token create --access`"},
			"certificate": tree{"type": "mutualTLS", "description": "of `pagurus login`; over the controller's UNIX socket the kernel says who calls"},
		}, "responses": tree{"Problem": tree{"description": "It was refused, or failed.", "content": tree{"application/problem+json": tree{"schema": tree{
			"type": "object", "required": []string{"title", "status", "detail"}, "properties": tree{
				"title": tree{"type": "string"}, "status": tree{"type": "integer"}, "detail": tree{"type": "string", "description": "one sentence for people, with what to do next"}}}}}}}},
	}
}

func (d *document) operation(o Operation) tree {
	out := tree{"operationId": o.ID, "summary": o.Summary, "tags": []string{strings.Split(o.Path, "/")[1]}}
	if o.Command != "" {
		out["x-command"] = "pagurus " + o.Command
	}
	var list []any
	for _, name := range parameters(o.Path) {
		list = append(list, tree{"name": name, "in": "path", "required": true, "schema": tree{"type": "string"}})
	}
	for _, p := range o.Query {
		list = append(list, tree{"name": p.Name, "in": "query", "description": p.Says, "schema": tree{"type": p.Kind}})
	}
	if o.Verb != "" && !o.Predicts {
		list = append(list, tree{"name": "Idempotency-Key", "in": "header", "schema": tree{"type": "string", "maxLength": 128}})
	}
	if o.Media == "text/event-stream" {
		list = append(list, tree{"name": "Last-Event-ID", "in": "header", "schema": tree{"type": "string"}})
	}
	if list != nil {
		out["parameters"] = list
	}
	if body := d.body(o); body != nil {
		out["requestBody"] = body
	}
	media, schema := "application/json", any(nil)
	if o.Gives != nil {
		schema = d.schema(o.Gives)
	}
	if o.Media != "" {
		media, schema = o.Media, tree{"type": "string"}
	}
	out["responses"] = tree{"200": tree{"description": "It is done, or this is the answer.", "content": tree{media: tree{"schema": schema}}}, "default": tree{"$ref": "#/components/responses/Problem"}}
	return out
}

func (d *document) body(o Operation) tree {
	of := func(media string, schema any, required bool) tree {
		return tree{"required": required, "content": tree{media: tree{"schema": schema}}}
	}
	request := reflect.TypeFor[fleet.Request]()
	switch {
	case o.Takes != "":
		return of(o.Takes, tree{"type": "string"}, true)
	case o.Whole != "":
		field := fieldOf(request, o.Whole).Type
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		return of("application/json", d.asked(field), true)
	case len(o.Fields) == 0:
		return nil
	}
	props := tree{}
	for _, name := range o.Fields {
		props[name] = d.property(request, fieldOf(request, name))
	}
	return of("application/json", tree{"type": "object", "additionalProperties": false, "properties": props}, false)
}

// fieldOf finds a field by its name in JSON.
func fieldOf(t reflect.Type, name string) reflect.StructField {
	for i := range t.NumField() {
		if is, _ := jsonName(t.Field(i)); is == name {
			return t.Field(i)
		}
	}
	panic(fmt.Sprintf("%v has no field %s", t, name))
}

// jsonName is a field's name in JSON, and whether it may be left out.
func jsonName(f reflect.StructField) (name string, optional bool) {
	tag := strings.Split(f.Tag.Get("json"), ",")
	if tag[0] == "" {
		tag[0] = f.Name
	}
	for _, o := range tag[1:] {
		optional = optional || o == "omitempty" || o == "omitzero"
	}
	return tag[0], optional
}

var (
	textual = reflect.TypeFor[encoding.TextMarshaler]()
	own     = reflect.TypeFor[json.Marshaler]()
)

func (d *document) schema(t reflect.Type) any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return tree{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return tree{"type": "integer", "format": "int64", "description": "nanoseconds"}
	case t.Implements(own):
		return tree{}
	case t.Implements(textual):
		return tree{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return tree{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return tree{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return tree{"type": "number"}
	case reflect.String:
		return tree{"type": "string"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && t.Kind() == reflect.Slice {
			return tree{"type": []string{"string", "null"}, "contentEncoding": "base64"}
		}
		return tree{"type": []string{"array", "null"}, "items": d.schema(t.Elem())}
	case reflect.Map:
		return tree{"type": []string{"object", "null"}, "additionalProperties": d.schema(t.Elem())}
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Struct:
		return d.structure(t)
	}
	return tree{}
}

func (d *document) structure(t reflect.Type) any {
	if t.Name() == "" {
		return d.object(t)
	}
	name := nameOf(t)
	if before, met := d.named[name]; met && before != t {
		panic(fmt.Sprintf("%v and %v have the same name", before, t))
	} else if !met {
		d.named[name] = t
		d.schemas[name] = d.object(t)
	}
	return tree{"$ref": "#/components/schemas/" + name}
}

// asked is the schema of a body: what has a usual value may be left out.
func (d *document) asked(t reflect.Type) any {
	name := nameOf(t) + "Asked"
	schema := d.object(t)
	delete(schema, "required")
	schema["additionalProperties"] = false
	d.schemas[name] = schema
	return tree{"$ref": "#/components/schemas/" + name}
}

var (
	qualifier = regexp.MustCompile(`[\w./]*[./]`)
	sign      = regexp.MustCompile(`\W`)
)

// nameOf is a type's name, without the signs in that of a generic one.
func nameOf(t reflect.Type) string {
	name, of, _ := strings.Cut(t.Name(), "[")
	return name + sign.ReplaceAllString(qualifier.ReplaceAllString(of, ""), "")
}

func (d *document) object(t reflect.Type) tree {
	props, required := tree{}, []string{}
	d.fields(t, props, &required)
	out := tree{"type": "object", "properties": props}
	if len(required) > 0 {
		out["required"] = required
	}
	if says := d.comments[t.String()]; says != "" {
		out["description"] = says
	}
	return out
}

// fields adds those of a struct, and of structs in it that have no name of their own.
func (d *document) fields(t reflect.Type, props tree, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, optional := jsonName(f)
		switch {
		case f.Anonymous && f.Tag.Get("json") == "":
			d.fields(f.Type, props, required)
		case f.IsExported() && name != "-":
			props[name] = d.property(t, f)
			if !optional {
				*required = append(*required, name)
			}
		}
	}
}

func (d *document) property(of reflect.Type, f reflect.StructField) any {
	schema := d.schema(f.Type)
	if says := d.comments[of.String()+"."+f.Name]; says != "" {
		if at, is := schema.(tree); is {
			if before, has := at["description"].(string); has {
				says = before + "; " + says
			}
			at["description"] = says // beside $ref it may be, since OpenAPI 3.1
		}
	}
	return schema
}

// commentsOf reads what the sources say of types and fields.
func commentsOf(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	spaces := regexp.MustCompile(`\s+`)
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			keep := func(name string, of ...*ast.CommentGroup) {
				for _, c := range of {
					if text := strings.TrimSpace(spaces.ReplaceAllString(c.Text(), " ")); text != "" && out[name] == "" {
						out[name] = text
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				decl, is := n.(*ast.GenDecl)
				if !is {
					return true
				}
				for _, spec := range decl.Specs {
					typ, is := spec.(*ast.TypeSpec)
					if !is {
						continue
					}
					name := file.Name.Name + "." + typ.Name.Name
					keep(name, typ.Doc, decl.Doc)
					fields, is := typ.Type.(*ast.StructType)
					if !is {
						continue
					}
					for _, f := range fields.Fields.List {
						for _, id := range f.Names {
							keep(name+"."+id.Name, f.Doc, f.Comment)
						}
					}
				}
				return true
			})
		}
	}
	return out
}

// TestEveryRequest: each request of the protocol has an operation.
func TestEveryRequest(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../fleet/message.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	made, requests := map[string]bool{}, 0
	for _, o := range Operations {
		made[string(o.Verb)] = true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		if kind, is := spec.Type.(*ast.Ident); !is || kind.Name != "RequestVerb" {
			return true
		}
		for _, value := range spec.Values {
			verb, err := strconv.Unquote(value.(*ast.BasicLit).Value)
			if requests++; err != nil || !made[verb] {
				t.Errorf("no operation makes the request %q", verb)
			}
		}
		return true
	})
	if requests == 0 {
		t.Error("fleet has no requests")
	}
}
