"""Tables of public facts that the `facts` source draws statements from.

Left out on purpose: countries whose seat of government is disputed or shared (Bolivia, South
Africa, Israel, ...), and countries whose capital repeats the country's name (Mexico City,
Singapore, Tunis, ...), because there the wording alone would mark the true statement.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CAPITALS", "ELEMENTS"]

# One block a region; a wrong capital is always another one of the same region where possible.
_CAPITALS_BY_REGION: Final = {
    "Europe": (
        "Albania=Tirana; Austria=Vienna; Belarus=Minsk; Belgium=Brussels; Bulgaria=Sofia; "
        "Croatia=Zagreb; Cyprus=Nicosia; Czechia=Prague; Denmark=Copenhagen; Estonia=Tallinn; "
        "Finland=Helsinki; France=Paris; Germany=Berlin; Greece=Athens; Hungary=Budapest; "
        "Iceland=Reykjavik; Ireland=Dublin; Italy=Rome; Latvia=Riga; Liechtenstein=Vaduz; "
        "Lithuania=Vilnius; Malta=Valletta; Moldova=Chisinau; Montenegro=Podgorica; "
        "North Macedonia=Skopje; Norway=Oslo; Poland=Warsaw; Portugal=Lisbon; Romania=Bucharest; "
        "Russia=Moscow; Serbia=Belgrade; Slovakia=Bratislava; Slovenia=Ljubljana; Spain=Madrid; "
        "Sweden=Stockholm; Switzerland=Bern; Ukraine=Kyiv; the United Kingdom=London; "
        "Bosnia and Herzegovina=Sarajevo; the Netherlands=Amsterdam"
    ),
    "Asia": (
        "Afghanistan=Kabul; Armenia=Yerevan; Azerbaijan=Baku; Bahrain=Manama; Bangladesh=Dhaka; "
        "Bhutan=Thimphu; Brunei=Bandar Seri Begawan; Cambodia=Phnom Penh; China=Beijing; "
        "Georgia=Tbilisi; India=New Delhi; Iran=Tehran; Iraq=Baghdad; "
        "Japan=Tokyo; Jordan=Amman; Kazakhstan=Astana; Kyrgyzstan=Bishkek; Laos=Vientiane; "
        "Lebanon=Beirut; Malaysia=Kuala Lumpur; the Maldives=Male; Mongolia=Ulaanbaatar; "
        "Myanmar=Naypyidaw; Nepal=Kathmandu; North Korea=Pyongyang; Oman=Muscat; "
        "Pakistan=Islamabad; the Philippines=Manila; Qatar=Doha; Saudi Arabia=Riyadh; "
        "South Korea=Seoul; Syria=Damascus; Tajikistan=Dushanbe; "
        "Thailand=Bangkok; Timor-Leste=Dili; Turkey=Ankara; Turkmenistan=Ashgabat; "
        "the United Arab Emirates=Abu Dhabi; Uzbekistan=Tashkent; Vietnam=Hanoi"
    ),
    "Africa": (
        "Angola=Luanda; Botswana=Gaborone; Burkina Faso=Ouagadougou; "
        "Cameroon=Yaounde; Cape Verde=Praia; the Central African Republic=Bangui; "
        "Chad=N'Djamena; the Comoros=Moroni; the Republic of the Congo=Brazzaville; "
        "the Democratic Republic of the Congo=Kinshasa; Egypt=Cairo; "
        "Eritrea=Asmara; Ethiopia=Addis Ababa; Gabon=Libreville; the Gambia=Banjul; Ghana=Accra; "
        "Guinea=Conakry; Kenya=Nairobi; Lesotho=Maseru; Liberia=Monrovia; Libya=Tripoli; "
        "Madagascar=Antananarivo; Malawi=Lilongwe; Mali=Bamako; Mauritania=Nouakchott; "
        "Mauritius=Port Louis; Morocco=Rabat; Mozambique=Maputo; Namibia=Windhoek; Niger=Niamey; "
        "Nigeria=Abuja; Rwanda=Kigali; Senegal=Dakar; Seychelles=Victoria; "
        "Sierra Leone=Freetown; Somalia=Mogadishu; South Sudan=Juba; Sudan=Khartoum; Togo=Lome; "
        "Uganda=Kampala; Zambia=Lusaka; Zimbabwe=Harare"
    ),
    "the Americas": (
        "Argentina=Buenos Aires; the Bahamas=Nassau; Barbados=Bridgetown; Belize=Belmopan; "
        "Canada=Ottawa; Colombia=Bogota; Costa Rica=San Jose; Cuba=Havana; "
        "Ecuador=Quito; Grenada=St. George's; "
        "Guyana=Georgetown; Haiti=Port-au-Prince; Honduras=Tegucigalpa; Jamaica=Kingston; "
        "Nicaragua=Managua; Paraguay=Asuncion; Peru=Lima; Saint Kitts and Nevis=Basseterre; "
        "Saint Lucia=Castries; Saint Vincent and the Grenadines=Kingstown; Suriname=Paramaribo; "
        "Trinidad and Tobago=Port of Spain; the United States=Washington, D.C.; "
        "Uruguay=Montevideo; Venezuela=Caracas; Antigua and Barbuda=St. John's"
    ),
    "Oceania": (
        "Australia=Canberra; Fiji=Suva; the Marshall Islands=Majuro; "
        "Micronesia=Palikir; New Zealand=Wellington; Palau=Ngerulmud; "
        "Papua New Guinea=Port Moresby; Samoa=Apia; the Solomon Islands=Honiara; "
        "Tonga=Nuku'alofa; Tuvalu=Funafuti; Vanuatu=Port Vila"
    ),
}

CAPITALS: Final[tuple[tuple[str, str, str], ...]] = tuple(
    (country, capital, region)
    for region, block in _CAPITALS_BY_REGION.items()
    for country, capital in (entry.split("=") for entry in block.split("; "))
)
"""(country, capital, region)."""

_ELEMENTS_IN_ORDER: Final = (
    "hydrogen=H helium=He lithium=Li beryllium=Be boron=B carbon=C nitrogen=N oxygen=O "
    "fluorine=F neon=Ne sodium=Na magnesium=Mg aluminium=Al silicon=Si phosphorus=P sulfur=S "
    "chlorine=Cl argon=Ar potassium=K calcium=Ca scandium=Sc titanium=Ti vanadium=V "
    "chromium=Cr manganese=Mn iron=Fe cobalt=Co nickel=Ni copper=Cu zinc=Zn gallium=Ga "
    "germanium=Ge arsenic=As selenium=Se bromine=Br krypton=Kr rubidium=Rb strontium=Sr "
    "yttrium=Y zirconium=Zr niobium=Nb molybdenum=Mo technetium=Tc ruthenium=Ru rhodium=Rh "
    "palladium=Pd silver=Ag cadmium=Cd indium=In tin=Sn antimony=Sb tellurium=Te iodine=I "
    "xenon=Xe caesium=Cs barium=Ba lanthanum=La cerium=Ce praseodymium=Pr neodymium=Nd "
    "promethium=Pm samarium=Sm europium=Eu gadolinium=Gd terbium=Tb dysprosium=Dy holmium=Ho "
    "erbium=Er thulium=Tm ytterbium=Yb lutetium=Lu hafnium=Hf tantalum=Ta tungsten=W "
    "rhenium=Re osmium=Os iridium=Ir platinum=Pt gold=Au mercury=Hg thallium=Tl lead=Pb "
    "bismuth=Bi polonium=Po astatine=At radon=Rn francium=Fr radium=Ra actinium=Ac thorium=Th "
    "protactinium=Pa uranium=U neptunium=Np plutonium=Pu americium=Am curium=Cm berkelium=Bk "
    "californium=Cf einsteinium=Es fermium=Fm mendelevium=Md nobelium=No"
)

ELEMENTS: Final[tuple[tuple[str, str, int], ...]] = tuple(
    (element, symbol, number)
    for number, entry in enumerate(_ELEMENTS_IN_ORDER.split(" "), start=1)
    for element, symbol in (entry.split("="),)
)
"""(element, symbol, atomic number)."""
