"""The words of the generated documents."""

from __future__ import annotations


def _listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


CODE_ATTRIBUTES = _listed(
    "access code|door code|serial number|locker number|safe combination|ticket number|invoice number|gate code|"
    "phone extension|order number|case number|badge number|licence number|account number|flight number|shelf mark|"
    "alarm code|customer number|batch number|meter reading|security code|reference number|parcel number|"
    "entry code",
    "|",
)
NAME_ATTRIBUTES = _listed(
    "keeper|owner|architect|manager|director|caretaker|inspector|founder|head cook|chief engineer|librarian|"
    "contact person|night guard|first mate|treasurer|translator|author|designer|gardener|tenant|painter|captain|"
    "supervisor|secretary",
    "|",
)
DATE_ATTRIBUTES = _listed(
    "opening date|launch date|closing date|delivery date|release date|inspection date|moving day|start date|"
    "due date|founding date|repair date|expiry date|first day|last day|wedding day|arrival date|departure date|"
    "renewal date|review date|payment date",
    "|",
)
WORD_ATTRIBUTES = _listed(
    "password|secret word|favourite dish|favourite colour|code name|nickname|motto|main product|call sign|emblem|"
    "special dish|mascot|cargo|hiding place|logo|speciality|passphrase|theme|prize|label",
    "|",
)
ADJECTIVES = _listed(
    "north south east west old new upper lower red blue green white black yellow grey golden silver small large tall "
    "narrow wide quiet busy bright dark cold warm first second third fourth last main outer inner central hidden "
    "forgotten royal public private western eastern northern southern wooden iron brick marble copper crooked ancient "
    "modern famous lonely round square steep shallow deep distant nearby rusty polished broken restored temporary "
    "permanent local foreign spare abandoned crowded sunny windy snowy dusty elegant humble noisy silent young"
)
NOUNS = _listed(
    "station harbour library museum bridge tower garden market school hospital factory warehouse theatre castle "
    "bakery mill farm hotel office workshop laboratory archive airport lighthouse chapel stadium cinema pharmacy "
    "gallery observatory brewery monastery prison palace courthouse depot dock ferry tunnel mine quarry reservoir dam "
    "vineyard orchard stable barn cottage villa cabin kitchen cellar attic studio clinic embassy bank vault post "
    "terminal platform hangar greenhouse aquarium zoo park fountain square plaza arcade mall shop cafe restaurant inn "
    "tavern club hall court pool gym arena pier marina shipyard canal lock boathouse windmill silo granary dairy "
    "smithy foundry printer server engine machine generator turbine boiler pump elevator telescope clock piano boat "
    "ship train tram bus truck crane tractor balloon rocket satellite team choir orchestra committee company"
)
FIRST_NAMES = _listed(
    "Anna Bruno Clara David Elena Felix Greta Henry Ida Jonas Karin Leo Maria Nils Olga Paul Rosa Simon Tara Victor "
    "Wanda Xavier Yara Zoe Alice Boris Carmen Dora Emil Fiona George Hanna Igor Julia Kurt Lena Martin Nora Oscar "
    "Petra Quentin Ruth Stefan Teresa Ursula Vera Walter Amir Bella Chen Dmitri Esther Farid Gina Hugo Ines Jamal "
    "Keiko Luca Mei Nadia Omar Priya Rashid Sara Tomas Usha Viktor Wei Yusuf Zainab Arthur Beatrice Charles"
)
LAST_NAMES = _listed(
    "Adler Berg Castro Dahl Ekman Fischer Garcia Holm Ivanov Jensen Keller Lindt Moreau Novak Olsen Petrov Quist "
    "Rossi Schmidt Tanaka Ueda Vogel Weber Young Zhang Abbott Baker Carter Dixon Evans Foster Grant Hughes Irving "
    "Jackson Kumar Lopez Marsh Nolan Okafor Parker Reed Silva Turner Underwood Vance Walsh Xu Yates Zimmer Amari "
    "Bello Conti Dubois Fontaine Gomez Hassan Ito Jung Khan Laurent Mendes Nakamura Ortiz Popov Ramos Sato "
    "Torres"
)
SYLLABLES = _listed(
    "ba be bo bri da del do dra el en fa fin ga gor ha hel il in ja jor ka kel la len lo ma mer mo na nel no or pa "
    "per ra rin ro sa sel so ta ter to ul va vel vi wa wen wil ya zan zo"
)
MONTHS = _listed("January February March April May June July August September October November December")
VERBS = _listed(
    "passed watched reached left visited described repaired painted crossed measured surrounded faced overlooked "
    "avoided admired remembered guarded cleaned served supplied joined followed ignored supported closed opened "
    "photographed inspected rebuilt sketched explored mentioned praised neglected improved covered heated"
)
PLACES = _listed("near behind beside beyond below above opposite around outside inside along across past towards under")
PEOPLE = _listed(
    "traveller visitor neighbour farmer teacher doctor sailor merchant student soldier baker carpenter driver nurse "
    "journalist tourist mechanic fisherman lawyer musician poet clerk guide child widow stranger guest crowd"
)
TIMES = _listed(
    "in the morning|in the evening|at noon|after the rain|before the storm|during the winter|in early spring|"
    "late at night|on the way home|without a word|for several weeks|once a year|as usual|from time to time|"
    "in those days|after a long silence|with great care|to everyone's surprise|much later|before breakfast",
    "|",
)
THINGS = _listed(
    "lamp letter basket map blanket lantern violin suitcase ladder rope bottle candle mirror umbrella notebook key "
    "chair table window door carpet kettle hammer compass coin ring apple loaf cheese melon pear onion pumpkin "
    "falcon otter badger heron salmon tiger walnut cedar maple willow thistle saffron amber cobalt velvet granite "
    "thunder comet harvest river meadow glacier canyon island lagoon desert forest"
)
